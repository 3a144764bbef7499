"""What a run on a GPU gets where the command leaves it open."""

import pytest

from eblvm.engine.config import Config
from eblvm.engine.recipes import recipe
from eblvm.engine.training.gpu_defaults import gpu_defaults, sentence, takes_graphs

DEEP, GRBM = recipe("cifar10"), recipe("freyface")


def chosen(config: Config) -> tuple[str, bool]:
    return config["precision"], config["channels_last"]


@pytest.mark.parametrize(
    ("given", "capability", "expected"),
    [
        ({}, (8, 0), ("tf32", True)),
        ({}, (7, 5), ("fp32", False)),
        ({"precision": "fp32"}, (9, 0), ("fp32", False)),
        ({"precision": "bf16"}, (9, 0), ("bf16", True)),
        ({"channels_last": False}, (9, 0), ("tf32", False)),
    ],
)
def test_networks(given: dict[str, object], capability: tuple[int, int], expected: tuple[str, bool]) -> None:
    assert chosen(gpu_defaults(DEEP.replaced(**given), list(given), None, capability)) == expected


def test_a_run_keeps_what_it_began_with() -> None:
    assert chosen(gpu_defaults(DEEP, [], DEEP, (9, 0))) == ("fp32", False)


def test_a_grbm_stays_exact() -> None:
    assert gpu_defaults(GRBM, [], None, (9, 0)).differences(GRBM) == []


@pytest.mark.parametrize(
    ("config", "changes", "processes", "expected"),
    [
        (GRBM, {}, 1, True),
        (GRBM, {"graphs": False}, 1, False),
        (GRBM, {}, 2, False),
        (GRBM, {"deterministic": True}, 1, False),
        (GRBM, {"compile": True}, 1, False),
        (GRBM, {"device": "cpu"}, 1, False),
        (recipe("checkerboard", "mlp"), {}, 1, True),
        (DEEP, {}, 1, False),
        (DEEP, {"graphs": True}, 1, True),
    ],
)
def test_graphs_of_steps_of_small_kernels(
    config: Config, changes: dict[str, object], processes: int, expected: bool
) -> None:
    assert takes_graphs(config.replaced(**{"device": "cuda", **changes}), processes) is expected


def test_the_rule_is_said() -> None:
    assert "--graphs" in sentence(GRBM.replaced(device="cuda"), "H100")
    assert "--graphs" not in sentence(GRBM.replaced(device="cuda"), "H100", 2)
    assert sentence(gpu_defaults(DEEP, [], None, (9, 0)), "H100") == (
        "on H100: --precision tf32, --channels-last, cudnn.benchmark; flags override this, "
        "--precision fp32 --no-channels-last is exact"
    )
