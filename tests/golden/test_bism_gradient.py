"""The engine's BiSM gradient against the paper's double loop, in fp64."""

import pytest
import torch
from torch import Tensor

from eblvm.engine.methods.base import Loss, State
from eblvm.engine.methods.bilevel import BilevelScore, ExactScore
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.divergences import Kl, KlExact
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.sm import Sm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.golden import brute_force

B, D, H, K, LR, UNROLL_LR, TAU, BETAS = 7, 5, 4, 2, 0.02, 0.3, 0.1, (0.9, 0.95)
TOLERANCE = 1e-9  # relative to the largest entry of each gradient


def objective(loss: Loss, N: int, sgd: bool, memory: str, exact: bool, shared: bool) -> ScoreMatchingObjective:
    adam = Adam(BETAS)
    options = Bism(
        K=K,
        N=N,
        divergence=KlExact() if exact else Kl(),
        noise="shared" if shared else "fresh",
        unroll_optimizer="sgd" if sgd else "adam",
        unroll_lr=UNROLL_LR if sgd else None,
        unroll_memory=memory,
    )
    return ScoreMatchingObjective(BilevelScore(options, GRBM(D, H), Bernoulli(D, H, temperature=TAU), adam), loss, adam)


def start(method: ScoreMatchingObjective) -> tuple[Tensor, State, dict[str, Tensor]]:
    """A batch, and a state whose Adam moments are those of a run under way."""
    v = philox.normal(Key(3, 0), 0, B, (D,), dtype=torch.float64)
    state = method.init(Key(5, 0), v)
    state = torch.utils._pytree.tree_map(lambda t: t.double(), state)
    moments = state.phi_opt._replace(
        m={k: 0.01 * torch.ones_like(p) for k, p in state.phi.items()},
        v={k: 0.02 * torch.ones_like(p) for k, p in state.phi.items()},
        step_count=torch.tensor(3.0, dtype=torch.float64),
    )
    rates = {name: torch.tensor(LR, dtype=torch.float64) for name in ("theta", "phi", "unroll")}
    return v, state._replace(phi_opt=moments), rates


def by_hand(loss: Loss, noise: dict, v: Tensor):
    """The upper loss written out for a score function, and the batches of every step."""
    batches = [loss.perturb(v, eps, noise) for eps in noise["perturb"] or [None]]
    eps, sigma = batches[-1].eps, batches[-1].sigma

    def upper(score_fn, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        s = score_fn(x)
        if isinstance(loss, Dsm):
            return 0.5 * ((s + eps / loss.sigma) ** 2).sum(-1).mean()
        if isinstance(loss, Mdsm):
            return 0.5 * ((s / sigma + eps / loss.sigma0**2) ** 2).sum(-1).mean()
        jacobian = [torch.autograd.grad(s[:, d].sum(), x, create_graph=True)[0] for d in range(D)]
        hessian = torch.stack(jacobian, 1)
        if isinstance(loss, Sm):
            return (0.5 * (s**2).sum(-1) + hessian.diagonal(dim1=1, dim2=2).sum(-1)).mean()
        curvature = torch.einsum("mbi,bij,mbj->mb", noise["direction"], hessian, noise["direction"]).mean(0)
        return (0.5 * (s**2).sum(-1) + curvature).mean()

    return [b.v for b in batches], upper


LOSSES = {"dsm": Dsm(0.3), "mdsm": Mdsm((0.1, 1.0), "geometric", 0.1), "ssm": Ssm(directions=2), "sm": Sm()}


def compare(loss: Loss, N: int, sgd: bool, memory: str, exact: bool, shared: bool) -> None:
    method = objective(loss, N, sgd, memory, exact, shared)
    v, state, rates = start(method)
    rates["unroll"] = torch.tensor(UNROLL_LR, dtype=torch.float64) if sgd else rates["unroll"]
    noise = method.draw(Key(11, 4), v)
    with torch.no_grad():
        gradient, moved, _ = method.gradient(state, v, noise, rates)

    batches, upper = by_hand(loss, noise, v)
    batches = batches * (K + N + 1) if len(batches) == 1 else batches
    expected, phi = brute_force.bism_gradient(
        state.theta,
        state.phi,
        (state.phi_opt.m, state.phi_opt.v, int(state.phi_opt.step_count)),
        batches,
        [n[0] for n in noise["latent"]],
        upper,
        1 / (0.1 * 10 ** noise["level"]) if isinstance(loss, Mdsm) else 1.0,  # MDSM's levels, 0.1 to 1
        K=K,
        N=N,
        lr=LR,
        unroll_lr=UNROLL_LR,
        sgd=sgd,
        exact=exact,
        tau=TAU,
        betas=BETAS,
    )
    for name, value in expected.items():
        scale = value.abs().max()
        assert scale > 0 or (N == 0 and name == "c")  # without an unroll the surrogate score does not see c
        assert (gradient[name] - value).abs().max() <= TOLERANCE * scale, name
    for name, value in phi.items():
        torch.testing.assert_close(moved.phi[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("N", range(5))
@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
@pytest.mark.parametrize("loss", ["dsm", "ssm"])
def test_bism_gradient(loss: str, sgd: bool, memory: str, N: int) -> None:
    compare(LOSSES[loss], N, sgd, memory, exact=False, shared=True)


@pytest.mark.parametrize("exact", [False, True], ids=["kl", "kl-exact"])
@pytest.mark.parametrize("shared", [False, True], ids=["fresh", "shared"])
@pytest.mark.parametrize("loss", ["dsm", "mdsm", "sm"])
def test_bism_gradient_variants(loss: str, shared: bool, exact: bool) -> None:
    compare(LOSSES[loss], 2, False, "store", exact, shared)


@pytest.mark.parametrize("loss", ["dsm", "mdsm", "ssm", "sm"])
def test_exact_posterior_gives_the_exact_methods_gradient(loss: str) -> None:
    """Theorem 1 of BiSM: with q(h|v) = p(h|v) the bi-level gradient is that of score matching, for any sample of h."""
    adam = Adam(BETAS)
    energy = GRBM(D, H)
    options = Bism(K=0, N=0, divergence=Kl(), posterior=Exact())
    bism = BilevelScore(options, energy, Bernoulli(D, H, temperature=TAU), adam)
    bilevel, exact = (ScoreMatchingObjective(e, LOSSES[loss], adam) for e in (bism, ExactScore(energy)))
    v, state, rates = start(bilevel)
    noise = bilevel.draw(Key(1, 0), v)
    gradient, *_ = bilevel.gradient(state, v, noise, rates)
    expected, *_ = exact.gradient(state, v, noise, rates)
    for name, value in expected.items():
        torch.testing.assert_close(gradient[name], value, rtol=1e-10, atol=1e-10)
