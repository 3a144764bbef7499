"""Replicas: R runs at once equal R single runs."""

from pathlib import Path

import pytest
import torch

from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.methods import KINDS
from eblvm.engine.runs import checkpoint
from eblvm.engine.training.loop import train


def final_theta(config: Config, folder: Path) -> dict[str, torch.Tensor]:
    train(config, folder)
    payload, _ = checkpoint.newest(folder / "checkpoints")
    assert payload is not None
    return payload["state"]["theta"]


def compare(config: Config, tmp_path: Path, checked: list[int]) -> None:
    together = final_theta(config, tmp_path / "together")
    for r in checked:
        alone = final_theta(config.replaced(replicas=1, seed=config.optimisation.seed + r), tmp_path / str(r))
        for name, value in alone.items():
            torch.testing.assert_close(together[name][r], value, rtol=0, atol=1e-5)


def test_ten_replicas_of_the_checkerboard_equal_their_single_runs(tmp_path: Path) -> None:
    compare(recipes.checkerboard().replaced(steps=200, replicas=10), tmp_path, list(range(10)))


@pytest.mark.parametrize("method", [m for m in KINDS if m not in ("bidsm", "bidvl")])
def test_replicas_of_every_method(method: str, tmp_path: Path) -> None:
    # Finite differences magnify the rounding of fp32.
    dtype = "float64" if method.endswith("fdssm") else "float32"
    config = recipes.checkerboard().replaced(method=method, steps=30, replicas=2, validations=2, seed=4, dtype=dtype)
    compare(config.replaced(**{name: 1 for name in ("N", "K") if config.get(name) is not None}), tmp_path, [0, 1])


def test_replicas_with_recompute(tmp_path: Path) -> None:
    config = recipes.checkerboard().replaced(steps=20, replicas=2, N=2, K=1, unroll_memory="recompute")
    compare(config, tmp_path, [1])


def test_learning_rates_are_replicas_too(tmp_path: Path) -> None:
    config = recipes.checkerboard().replaced(method="dsm", steps=30, replicas=2, lr=(1e-3, 1e-2))
    assert config.optimisation.seeds().tolist() == [0, 1, 0, 1]
    assert config.optimisation.learning_rates(torch.float64).tolist() == [1e-3, 1e-3, 1e-2, 1e-2]
    assert config.optimisation.names()[3] == "seed=1 lr=0.01"
    together = final_theta(config, tmp_path / "together")
    alone = final_theta(config.replaced(replicas=1, seed=1, lr=(1e-2,)), tmp_path / "alone")
    for name, value in alone.items():
        torch.testing.assert_close(together[name][3], value, rtol=0, atol=1e-5)
