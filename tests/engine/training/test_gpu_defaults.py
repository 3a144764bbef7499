"""What a run on a GPU gets where the command leaves it open."""

import pytest

from eblvm.engine.config import Config
from eblvm.engine.recipes import recipe
from eblvm.engine.training.gpu_defaults import gpu_defaults, sentence, takes_graphs, uncaptured

DEEP, GRBM, BIDVL = recipe("cifar10"), recipe("freyface"), recipe("cifar10", method="bidvl")


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
    ("config", "changes", "why"),
    [
        (GRBM, {}, None),
        (DEEP, {}, None),
        (DEEP, {"N": 2, "micro_batch": 10, "precision": "fp16", "ema": 0.99, "schedule": "cosine"}, None),
        (DEEP, {"replicas": 2}, None),
        (BIDVL, {"K": 3}, None),
        (BIDVL, {"precision": "fp16"}, "bidvl asks before each move whether a gradient of fp16 is finite"),
        (recipe("checkerboard", "mlp"), {}, None),
        (
            BIDVL,
            {"precision": "fp16", "graphs": True},
            "bidvl asks before each move whether a gradient of fp16 is finite",
        ),
        (GRBM, {"deterministic": True}, "--deterministic promises the bits of plain steps"),
        (GRBM, {"deterministic": True, "graphs": True}, None),
        (GRBM, {"compile": True}, "a compiled step needs --graphs"),
        (GRBM, {"compile": True, "graphs": True}, None),
        (GRBM, {"graphs": False}, "--no-graphs"),
    ],
)
def test_a_step_is_captured_unless_something_in_it_says_why_not(
    config: Config, changes: dict[str, object], why: str | None
) -> None:
    config = config.replaced(**{"device": "cuda", **changes})
    assert uncaptured(config) == why
    assert takes_graphs(config) is (why is None)
    assert not takes_graphs(config.replaced(device="cpu"))


def test_the_rule_is_said() -> None:
    on_cuda = GRBM.replaced(device="cuda")
    assert "cudnn.benchmark, --graphs; flags" in sentence(on_cuda, "H100")
    assert "cudnn.benchmark, --no-graphs; flags" in sentence(on_cuda.replaced(graphs=False), "H100")
    assert ", no graph (a compiled step needs --graphs);" in sentence(on_cuda.replaced(compile=True), "H100")
    assert sentence(gpu_defaults(DEEP.replaced(device="cuda"), [], None, (9, 0)), "H100") == (
        "on H100: --precision tf32, --channels-last, cudnn.benchmark, --graphs; flags override this, "
        "--precision fp32 --no-channels-last is exact"
    )
