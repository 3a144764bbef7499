"""Replicas on several processes: each is the replica of one process, in fp64."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.methods.base import Rows
from eblvm.engine.recipes import recipe
from eblvm.engine.training import distributed
from eblvm.engine.training.start import initial_state
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.distributed.ranks import on_ranks
from tests.distributed.test_exact import BIDVL, DEEP, POINTS, SGD, WEIGHT_TOLERANCE, B

STEPS = 3
TWO = {"replicas": 2, "lr": (1e-2, 3e-3)}  # four replicas
CASES = {
    "mdsm": DEEP.replaced(method="mdsm", **TWO),
    "bimdsm N=2": DEEP.replaced(N=2, **TWO),
    "bimdsm N=2 sgd": DEEP.replaced(N=2, **SGD, **TWO),
    "bimdsm newton": DEEP.replaced(best_response="newton", **TWO),
    "vages-mdsm": DEEP.replaced(method="vages-mdsm", L=3, C=2, **TWO),
    "vages-ksd": DEEP.replaced(method="vages-ksd", L=3, clip_norm=None, **TWO),
    "grbm bidsm, automatic step": POINTS.replaced(unroll_optimizer="sgd", fused=False, **TWO),
    "grbm vnce": POINTS.replaced(method="vnce", latent_samples=2, **TWO),
    "grbm pcd": POINTS.replaced(method="pcd", sweeps=2, **TWO),
    "grbm ksd": POINTS.replaced(method="ksd", **TWO),
    "bidvl N=1": BIDVL.replaced(N=1, **TWO),
}


def trained(config: Config) -> dict[str, Tensor]:
    """Return the weights and logged values after the last step, by name."""
    shape = (2,) if config.recipe == "checkerboard" else (1, 8, 8)
    seeds, method = config.optimisation.seeds(), config.method
    data = philox.uniform(Key(seeds, 0), 0, STEPS * B, shape, dtype=torch.float64)
    nets = method.nets(config, data[0])
    take_step = replace(config.step, fused=False).of(config, nets)
    state = initial_state(config, nets, seeds, data[:, :B])
    shard = collectives.local_slice(B)
    info: dict[str, Tensor] = {}
    for step in range(STEPS):
        v, key = data[:, step * B : (step + 1) * B][:, shard], Key(seeds, step)
        noise = method.draw(nets, key, Rows.of(key, v, shard.start, B))
        state, info = take_step(state, v, noise, config.optimisation.rates(step, method.rates(), v))
    state = distributed.whole_chains(state)
    return {**state.theta.params, **state.phi.params, **state.theta.average, **state.buffers, **state.chain, **info}


def all_cases() -> dict[str, Any]:
    return {name: trained(config) for name, config in CASES.items()}


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return all_cases()


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(2, all_cases)


@pytest.mark.parametrize("name", CASES)
def test_world_size_changes_no_replica(name: str, one: dict[str, Any], two: list[dict[str, Any]]) -> None:
    for rank in two:
        assert rank[name].keys() == one[name].keys()
        for k, expected in one[name].items():
            torch.testing.assert_close(rank[name][k], expected, rtol=1e-8, atol=WEIGHT_TOLERANCE, msg=k)


@pytest.mark.parametrize("name", CASES)
def test_replicas_differ(name: str, one: dict[str, Any]) -> None:
    """The control: seeds and rates that were mixed up would not."""
    k = next(iter(one[name]))
    assert all(not torch.equal(one[name][k][0], other) for other in one[name][k][1:])


def test_a_run_of_replicas(tmp_path: Any) -> None:
    """`train` as a whole, whose chains are gathered before a checkpoint: one process continues it."""
    config = recipe("digits", method="pcd").replaced(latent=4, batch=8, steps=3, replicas=2, validations=1)
    assert on_ranks(2, finished, config, tmp_path / "run") == [True, True]
    longer = config.replaced(steps=5)
    assert finished(longer, tmp_path / "run", extend=True)
    assert finished(longer, tmp_path / "alone")
    for x, y in zip(weights(tmp_path / "run"), weights(tmp_path / "alone"), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)


def finished(config: Config, out: Any, extend: bool = False) -> bool:
    from eblvm.engine.training.loop import train

    return train(config, out, lambda _: None, extend=extend)


def weights(out: Any) -> list[Tensor]:
    from eblvm.engine.runs import checkpoint

    payload, _ = checkpoint.newest(out / "checkpoints")
    assert payload is not None
    return [*payload["state"]["theta"].values(), *payload["state"]["chain"].values()]
