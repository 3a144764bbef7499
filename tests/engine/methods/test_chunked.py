"""Gradients from chunks of a batch against those of the whole, in fp64; noise by rows against a slice of it."""

import pytest
import torch
from torch.utils._pytree import tree_leaves

from eblvm.engine.autodiff import tree_map
from eblvm.engine.config import Config
from eblvm.engine.methods import KINDS
from eblvm.engine.methods.base import sliced
from eblvm.engine.recipes import recipe
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import drawn, first_step

B, TOLERANCE = 7, 1e-10
DEEP = recipe("digits", "deep").replaced(
    width=2, latent=3, head_width=5, posterior_width=2, batch=B, dtype="float64", K=2, lr=(1e-2,)
)
POINTS = recipe("checkerboard").replaced(batch=B, dtype="float64", N=2, K=2)
CASES = {
    "mdsm": DEEP.replaced(method="mdsm"),
    "bimdsm N=0": DEEP,
    "bimdsm N=2 adam": DEEP.replaced(N=2),
    "bimdsm N=2 sgd kl": DEEP.replaced(N=2, unroll_optimizer="sgd", unroll_lr=1e-3, divergence="kl", latent_samples=2),
    "bimdsm N=2 recompute checkpoint": DEEP.replaced(N=2, unroll_memory="recompute", checkpoint="all"),
    "bimdsm newton": DEEP.replaced(best_response="newton"),
    "vages-mdsm": DEEP.replaced(method="vages-mdsm", L=3, C=2),
    "grbm bidsm": POINTS.replaced(unroll_optimizer="sgd"),
    "grbm bissm": POINTS.replaced(method="bissm", directions=2),
    "grbm bimdsm": POINTS.replaced(method="bimdsm"),
    "grbm bifdssm": POINTS.replaced(method="bifdssm"),
    "grbm vages-ssm": POINTS.replaced(method="vages-ssm", directions=2),
    "grbm exact": POINTS.replaced(N=0, K=0, posterior="exact"),
    "grbm sm": POINTS.replaced(method="sm"),
}


def batch_of(config: Config) -> torch.Tensor:
    return philox.uniform(Key(7, 0), 0, B, config.shape, dtype=torch.float64)


@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_whole_batch(name: str, size: int) -> None:
    begun = first_step(CASES[name], batch_of(CASES[name]))
    begun = begun._replace(noise=drawn(begun.method, begun.nets, Key(1, 2), begun.v))
    method, nets, state, v, noise, _ = begun
    expected, expected_state, expected_info = begun.by_autograd()
    gradient, moved, info = begun.in_chunks(size)
    with torch.no_grad():
        torch.testing.assert_close(
            method.validation(nets, state, v, noise, size), method.validation(nets, state, v, noise)
        )
    for k, g in expected.items():
        assert (gradient[k] - g).abs().max() <= TOLERANCE * max(1.0, float(g.abs().max())), k
    for k, p in expected_state.phi.params.items():
        torch.testing.assert_close(moved.phi.params[k], p, rtol=0, atol=1e-10)
    assert info.keys() == expected_info.keys()
    for k, x in expected_info.items():
        torch.testing.assert_close(info[k], x)


# Every noise has the sample axis first: rows of a batch are rows of its noise.

VARIED = {  # options that draw more kinds of noise than a method's own
    "ssm": {"directions": 3},
    "bidsm": {"noise": "fresh", "divergence": "kl", "latent_samples": 2},
    "bissm": {"best_response": "newton", "directions": 2},
    "vages-ssm": {"L": 3, "directions": 2},
    "is-ksd": {"L": 5},
    "cd": {"sweeps": 3},
    "vnce": {"latent_samples": 3},
}


def assert_rows_are_a_slice(config: Config, shape: tuple[int, ...]) -> None:
    v = torch.zeros(8, *shape, dtype=torch.float64)
    method, nets = config.method, config.method.nets(config, v + torch.arange(8.0).view(-1, *[1] * len(shape)))
    for first, count in ((0, 3), (3, 5), (7, 1)):
        whole = sliced(drawn(method, nets, Key(3, 5), v), first, count)
        rows = drawn(method, nets, Key(3, 5), v[first : first + count], first, len(v))
        assert rows.keys() == whole.keys()
        tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=0, atol=0), rows, whole)


@pytest.mark.parametrize("varied", [False, True], ids=["default", "varied"])
@pytest.mark.parametrize("kind", [kind for kind, method in KINDS.items() if not method.generates])
def test_noise_of_rows_is_a_slice_of_that_of_the_batch(kind: str, varied: bool) -> None:
    changes = VARIED.get(kind, {}) if varied else {}
    assert_rows_are_a_slice(recipe("checkerboard", method=kind).replaced(**changes), (2,))


@pytest.mark.parametrize("changes", [{"method": "vages-mdsm", "C": 2}, {"best_response": "newton"}], ids=str)
def test_noise_of_rows_of_a_deep_model(changes: dict) -> None:
    assert_rows_are_a_slice(DEEP.replaced(**changes), (1, 8, 8))


def test_noise_of_rows_of_a_generator() -> None:
    tiny = {"width": 2, "posterior_width": 2, "generator_width": 2, "latent": 3, "K": 2, "N": 1}
    assert_rows_are_a_slice(recipe("digits", method="bidvl").replaced(**tiny), (1, 8, 8))


@pytest.mark.parametrize("kind", [kind for kind, method in KINDS.items() if not method.generates])
def test_noise_of_replicas_is_that_of_each(kind: str) -> None:
    """The replicas' axis comes before the samples'."""
    config, seeds = recipe("checkerboard", method=kind).replaced(**VARIED.get(kind, {})), torch.tensor([3, 9])
    v = torch.zeros(2, 4, 2)
    nets = config.method.nets(config, torch.arange(8.0).view(4, 2))
    together = drawn(config.method, nets, Key(seeds, 2), v)
    for r, seed in enumerate(seeds.tolist()):
        alone = drawn(config.method, nets, Key(seed, 2), v[r])
        for a, b in zip(tree_leaves(together), tree_leaves(alone), strict=True):
            assert torch.equal(a[r], b)
