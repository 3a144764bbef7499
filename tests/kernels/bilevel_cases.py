"""The bi-level step of BiDSM on a GRBM, fused and by the engine's autograd, for the tests of the kernel."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.methods.base import State
from eblvm.engine.methods.bilevel import BilevelScore
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.divergences import Kl, KlExact
from eblvm.engine.methods.grbm.fused import fused_gradient, fused_step_for
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose

SIGMA, TAU, LR, UNROLL_LR, BETAS = 0.3, 0.1, 0.02, 0.3, (0.9, 0.95)
# (B, D, H): the dual unroll (B < 2D), the primal one, one of everything, odd and large enough for torch's products.
SIZES = [(7, 5, 4), (20, 3, 4), (1, 1, 1), (63, 100, 37), (100, 2, 257)]


def objective(
    size: tuple[int, int, int], N: int, K: int, *, sgd: bool, shared: bool, exact: bool, auto: bool = False
) -> ScoreMatchingObjective:
    _, D, H = size
    adam = Adam(BETAS)
    options = Bism(
        K=K,
        N=N,
        divergence=KlExact() if exact else Kl(),
        noise="shared" if shared else "fresh",
        unroll_optimizer="sgd" if sgd else "adam",
        unroll_lr=None if auto else UNROLL_LR,
    )
    bism = BilevelScore(options, GRBM(D, H), Bernoulli(D, H, temperature=TAU), adam)
    return ScoreMatchingObjective(bism, Dsm(SIGMA), adam)


def start(
    method: ScoreMatchingObjective, size: tuple[int, int, int], seed: Any = 5, dtype: torch.dtype = torch.float64
):
    """(state of a run under way, batch, noise, rates), with the axes of `seed` first."""
    B, D, _ = size
    lead = seed.shape if isinstance(seed, Tensor) else ()
    v = philox.normal(Key(seed, 0), philox.purpose(Purpose.DATA), B, (D,), dtype=dtype)
    state = tree_map(lambda t: t.to(dtype), method.init(Key(seed, 0), v))
    state.theta["log_sigma"] = 0.2 * philox.normal(
        Key(seed, 1), philox.purpose(Purpose.INIT_THETA), 1, (D,), dtype=dtype
    ).squeeze(-2)
    moments = state.phi_opt._replace(
        m={k: 0.01 * torch.ones_like(p) for k, p in state.phi.items()},
        v={k: 0.02 + 0.01 * p.square() for k, p in state.phi.items()},
        step_count=torch.full(lead, 3.0, dtype=dtype),
    )
    upper = state.theta_opt._replace(
        v={k: 0.03 + torch.zeros_like(p) for k, p in state.theta.items()}, step_count=torch.full(lead, 2.0, dtype=dtype)
    )
    rates = {"theta": torch.full(lead, 0.01, dtype=dtype), "phi": torch.full(lead, LR, dtype=dtype)}
    rates["unroll"] = torch.full(lead, UNROLL_LR, dtype=dtype)
    noise = method.draw(Key(seed, 4), v)
    return state._replace(phi_opt=moments, theta_opt=upper), v, noise, rates


def by_autograd(method: ScoreMatchingObjective, *arguments: Any) -> Any:
    """The engine's generic step."""
    with torch.no_grad():
        return method.gradient(*arguments)


def fused(method: ScoreMatchingObjective, state: State, v: Tensor, noise: Any, rates: Any) -> Any:
    estimator = fused_step_for(method)
    assert estimator is not None
    return fused_gradient(estimator, method.loss, state, v, noise, rates)


def assert_same(got: Any, expected: Any, tolerance: float) -> None:
    """Gradient, phi, its moments and what is logged, each relative to its largest entry."""
    trees = [
        (r[0], r[1].phi, r[1].phi_opt.m, r[1].phi_opt.v, {"n": r[1].phi_opt.step_count}, r[2]) for r in (got, expected)
    ]
    for g, e in zip(*trees, strict=True):
        assert g.keys() == e.keys()
        for name, value in e.items():
            assert g[name].shape == value.shape, name
            assert g[name].dtype == value.dtype, name
            scale = float(value.abs().max())
            assert float((g[name] - value).abs().max()) <= tolerance * max(scale, 1e-6), name
