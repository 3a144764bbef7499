"""World size does not change the mathematics: 1 x 8 = 2 x 4 = 4 x 2 samples, gradients and five steps, in fp64."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.methods.base import Rows
from eblvm.engine.nets.base import Separable
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.recipes import recipe
from eblvm.engine.training import distributed
from eblvm.engine.training.start import initial_state
from eblvm.engine.training.validation import validation
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.distributed.ranks import on_ranks

B, STEPS = 8, 5
GRADIENT_TOLERANCE, WEIGHT_TOLERANCE = 1e-10, 1e-8

DEEP = recipe("digits", "deep").replaced(
    width=2, latent=3, head_width=5, posterior_width=2, batch=B, dtype="float64", K=2, lr=(1e-2,), clip_norm=50.0
)
SGD = {"unroll_optimizer": "sgd", "unroll_lr": 1e-3}
POINTS = recipe("checkerboard").replaced(batch=B, dtype="float64", N=2, K=2, ema=0.9)
BIDVL = recipe("digits", method="bidvl").replaced(
    width=2, latent=3, posterior_width=2, generator_width=2, batch=B, dtype="float64"
)
CASES = {
    "mdsm": DEEP.replaced(method="mdsm"),
    "bimdsm N=0": DEEP,
    "bimdsm N=2 adam": DEEP.replaced(N=2),
    "bimdsm N=2 sgd": DEEP.replaced(N=2, **SGD),
    "bimdsm N=2 adam recompute checkpoint": DEEP.replaced(N=2, unroll_memory="recompute", checkpoint="blocks"),
    "bimdsm N=2 sgd recompute": DEEP.replaced(N=2, unroll_memory="recompute", **SGD),
    "bimdsm N=2 adam kl fresh": DEEP.replaced(N=2, divergence="kl", noise="fresh"),
    "bimdsm newton": DEEP.replaced(best_response="newton"),
    "bidsm newton by samples": DEEP.replaced(model="custom", method="bidsm", best_response="newton"),
    "unused bias": DEEP.replaced(model="custom", method="bidsm", N=2),
    "grbm bidsm, automatic step": POINTS.replaced(unroll_optimizer="sgd", fused=False),
    "grbm bissm": POINTS.replaced(method="bissm"),
    "vages-mdsm": DEEP.replaced(method="vages-mdsm", L=3, C=2),
    "grbm vages-ssm": POINTS.replaced(method="vages-ssm"),
    "grbm vnce": POINTS.replaced(method="vnce", latent_samples=2),
    "grbm cd": POINTS.replaced(method="cd"),
    "grbm pcd": POINTS.replaced(method="pcd", sweeps=2),
    "grbm ksd": POINTS.replaced(method="ksd"),
    "vages-ksd": DEEP.replaced(method="vages-ksd", L=3, clip_norm=None),
    "bidvl": BIDVL,
    "bidvl N=1 K=2": BIDVL.replaced(N=1, K=2),
    "bidvl complete hinge sigmoid": BIDVL.replaced(
        opposite="complete", upper="hinge", output="real", ratio_bias="sigmoid"
    ),
    "bidvl joint": BIDVL.replaced(energy="joint", opposite="none", N=1),
    "bidvl checkpoint N=1": BIDVL.replaced(checkpoint="blocks", N=1),
    "bidvl micro-batch N=1": BIDVL.replaced(micro_batch=2, N=1),
}


class BiasedHead(nn.Module):
    """1/2 |h - f|^2 + 1/2 |A(f + h)|^2 + c; the score does not depend on c."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.c = nn.Linear(3, 4), nn.Parameter(torch.ones(()))

    def forward(self, f: Tensor, h: Tensor) -> Tensor:
        return 0.5 * (h - f).square().sum(-1) + 0.5 * self.linear(f + h).square().sum(-1) + self.c


def own_models(config: Config) -> tuple[Any, Any]:
    """Return the nets of a custom case; every rank must use the first rank's initial weights."""
    if config["model"] != "custom":
        return None, None
    torch.manual_seed(0)
    features = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Softplus(), nn.Linear(5, 3))
    posterior = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    return Separable(features.double(), BiasedHead().double()), Gaussian(posterior.double(), 3)


def trained(config: Config) -> dict[str, Any]:
    """Return the gradient of the second step, the weights after the last, and its logged values and validation loss."""
    shape = (2,) if config.recipe == "checkerboard" else (1, 8, 8)
    data = philox.uniform(Key(7, 0), 0, STEPS * B, shape, dtype=torch.float64)
    dataset = Dataset(data, data[:13], data, dtype=data.dtype)
    method, size = config.method, config.step.micro_batch
    nets = method.nets(config, data, *own_models(config))
    gradient = method.chunked(nets, size) if size else method.gradient(nets)
    take_step = replace(config.step, fused=False).of(config, nets)
    state = initial_state(config, nets, torch.tensor(0), data[:B])
    shard = collectives.local_slice(B)
    results: dict[str, Any] = {}
    for step in range(STEPS):
        v = data[step * B : (step + 1) * B][shard]
        key = Key(0, step)
        noise = method.draw(nets, key, Rows.of(key, v, shard.start, B))
        rates = config.optimisation.rates(step, method.rates(), v)
        if step == 1:  # Adam's moments are no longer zero
            with torch.no_grad():
                results["gradient"] = collectives.mean(gradient(state, v, noise, rates)[0])
        state, info = take_step(state, v, noise, rates)
    logged = info | {"validation": torch.tensor(validation(config, nets, state, dataset))}
    state = distributed.whole_chains(state)
    return results | {
        "weights": {**state.theta.params, **state.phi.params, **state.theta.average, **state.buffers, **state.chain},
        "info": logged,
    }


def all_cases() -> dict[str, dict[str, Any]]:
    return {name: trained(config) for name, config in CASES.items()}


@pytest.fixture(scope="module")
def one() -> dict[str, dict[str, Any]]:
    return all_cases()


@pytest.fixture(scope="module", params=[2, 4])
def several(request: pytest.FixtureRequest) -> list[dict[str, dict[str, Any]]]:
    return on_ranks(request.param, all_cases)


@pytest.mark.parametrize("name", CASES)
def test_world_size_changes_nothing(name: str, one: dict[str, Any], several: list[dict[str, Any]]) -> None:
    for rank in several:
        actual, expected = rank[name], one[name]
        for k, g in expected["gradient"].items():
            assert (actual["gradient"][k] - g).abs().max() <= GRADIENT_TOLERANCE * max(1.0, float(g.abs().max())), k
        for k, p in expected["weights"].items():
            torch.testing.assert_close(actual["weights"][k], p, rtol=0, atol=WEIGHT_TOLERANCE)
        assert actual["info"].keys() == expected["info"].keys()
        for k, x in expected["info"].items():
            torch.testing.assert_close(actual["info"][k], x, rtol=1e-8, atol=1e-8, msg=k)


@pytest.mark.parametrize("name", CASES)
def test_ranks_have_the_same_bits(name: str, several: list[dict[str, Any]]) -> None:
    first, *others = several
    for other in others:
        for k, p in first[name]["weights"].items():
            assert torch.equal(other[name]["weights"][k], p), k


def local_and_global() -> list[dict[str, Tensor]]:
    config = DEEP.replaced(N=2, **SGD)
    return [trained(config.replaced(sync=sync))["gradient"] for sync in ("global", "local")]


def test_local_unrolled_steps_are_near_but_not_equal() -> None:
    """The documented bias of --sync local: each rank unrolls on its own part of the batch."""
    exact, local = on_ranks(2, local_and_global)[0]
    difference = sum(float((local[k] - g).square().sum()) for k, g in exact.items()) ** 0.5
    norm = sum(float(g.square().sum()) for g in exact.values()) ** 0.5
    assert 1e-9 < difference / norm < 0.5


def buckets_of_all_kinds() -> list[Tensor]:
    rank = collectives.rank()
    tree = [
        torch.full((3, 5), 1.0 + rank),
        torch.full((7,), 2.0 + rank, dtype=torch.float64),
        torch.full((2, 3, 4, 4), 3.0 + rank).contiguous(memory_format=torch.channels_last),
        torch.full((collectives.BUCKET_BYTES // 4,), 4.0 + rank),
        torch.tensor(5.0 + rank),
    ]
    means = collectives.mean(tree)
    assert means[2].is_contiguous(memory_format=torch.channels_last)
    return [x.unique() for x in means]


def test_buckets_of_all_kinds() -> None:
    for rank in on_ranks(2, buckets_of_all_kinds):
        assert [x.item() for x in rank] == [1.5, 2.5, 3.5, 4.5, 5.5]


def agreed_flags() -> tuple[list[int], int]:
    """Return the steps at which this rank knows that rank 1 raised its flag in step 30, and how often all asked."""
    flags, asked, knows = distributed.Flags(), 0, []
    for done in range(1, 201):
        asked += done == flags.next
        time.sleep(0.002)
        if flags.agreed(done, collectives.rank() == 1 and done >= 30)[0]:
            knows.append(done)
    return knows, asked


def test_flags_are_agreed_without_asking_in_every_step() -> None:
    (first, asked), second = on_ranks(2, agreed_flags)
    assert second == (first, asked)
    assert first
    assert min(first) >= 30
    assert asked < 50
    assert distributed.Flags().agreed(1, True, False) == [True, False]
