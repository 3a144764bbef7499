"""The bi-level step of BiDSM on a GRBM, fused and by the engine's autograd, for the tests of the kernel."""

from typing import Any

import torch

from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.lower_level import Kl, KlExact
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose
from tests.engine.methods.started import ADAM, Started, bism_of, cast, drawn, rates_of, under_way

SIGMA, TAU, LR, UNROLL_LR = 0.3, 0.1, 0.02, 0.3
# (B, D, H): the dual unroll (B < 2D), the primal one, one of everything, odd and large enough for torch's products.
SIZES = [(7, 5, 4), (20, 3, 4), (1, 1, 1), (63, 100, 37), (100, 2, 257)]


def bidsm(N: int, K: int, *, sgd: bool, shared: bool, exact: bool, auto: bool = False) -> ScoreMatching:
    unroll_lr = None if auto else UNROLL_LR
    bism = bism_of(K, N, KlExact() if exact else Kl(), shared=shared, sgd=sgd, unroll_lr=unroll_lr)
    return ScoreMatching(bism, Dsm(SIGMA))


def nets_of(D: int, H: int) -> Nets:
    return Nets(GRBM(D, H), Bernoulli(D, H, temperature=TAU), phi_optimizer=ADAM)


def start(
    method: ScoreMatching, size: tuple[int, int, int], seed: Any = 5, dtype: torch.dtype = torch.float64
) -> Started:
    """A run under way, with the axes of `seed` first."""
    B, D, H = size
    nets, replicas = nets_of(D, H), tuple(torch.as_tensor(seed).shape)
    v = philox.normal(Key(seed, 0), philox.purpose(Purpose.DATA), B, (D,), dtype=dtype)
    state = cast(method.init(nets, Key(seed, 0), v, ADAM), dtype)
    state.theta.params["log_sigma"] = 0.2 * philox.normal(
        Key(seed, 1), philox.purpose(Purpose.INIT_THETA), 1, (D,), dtype=dtype
    ).squeeze(-2)
    theta = under_way(state.theta, 2.0, v=0.03, replicas=replicas)
    phi = under_way(state.phi, 3.0, m=0.01, replicas=replicas)
    squares = {k: 0.02 + 0.01 * p.square() for k, p in phi.params.items()}
    phi = phi._replace(moments=phi.moments._replace(v=squares))
    noise = drawn(method, nets, Key(seed, 4), v)
    rates = rates_of(LR, dtype, replicas, theta=0.01, unroll=UNROLL_LR)
    return Started(method, nets, state._replace(theta=theta, phi=phi), v, noise, rates)


def assert_same(got: Any, expected: Any, tolerance: float) -> None:
    """Gradient, phi, its moments and what is logged, each relative to its largest entry."""
    trees = [
        (gradient, phi.params, phi.moments.m, phi.moments.v, {"n": phi.moments.step_count}, info)
        for gradient, (_, phi, *_), info in (got, expected)
    ]
    for g, e in zip(*trees, strict=True):
        assert g.keys() == e.keys()
        for name, value in e.items():
            assert g[name].shape == value.shape, name
            assert g[name].dtype == value.dtype, name
            scale = float(value.abs().max())
            assert float((g[name] - value).abs().max()) <= tolerance * max(scale, 1e-6), name
