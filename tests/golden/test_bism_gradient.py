"""The engine's BiSM gradient against the paper's double loop, in fp64."""

import pytest
import torch
from torch import Tensor

from eblvm.engine.methods.base import Nets, Noise
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.estimates import Loss
from eblvm.engine.methods.exact import FreeEnergy
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.sm import Sm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.lower_level import Kl, KlExact
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, BETAS, Started, bism_of, cast, drawn, rates_of, under_way
from tests.golden import brute_force

B, D, H, K, LR, UNROLL_LR, TAU = 7, 5, 4, 2, 0.02, 0.3, 0.1
TOLERANCE = 1e-9  # relative to the largest entry of each gradient
NETS = Nets(GRBM(D, H), Bernoulli(D, H, temperature=TAU), phi_optimizer=ADAM)


def bilevel(loss: Loss, N: int, sgd: bool, memory: str, exact: bool, shared: bool) -> ScoreMatching:
    divergence, unroll_lr = KlExact() if exact else Kl(), UNROLL_LR if sgd else None
    bism = bism_of(K, N, divergence, shared=shared, sgd=sgd, unroll_lr=unroll_lr, memory=memory)
    return ScoreMatching(bism, loss)


def start(method: ScoreMatching, key: Key, unroll_lr: float = LR) -> Started:
    """A batch, and a state whose Adam moments are those of a run under way."""
    v = philox.normal(Key(3, 0), 0, B, (D,), dtype=torch.float64)
    state = cast(method.init(NETS, Key(5, 0), v, ADAM))
    state = state._replace(phi=under_way(state.phi, 3.0, m=0.01, v=0.02))
    return Started(method, NETS, state, v, drawn(method, NETS, key, v), rates_of(LR, unroll=unroll_lr))


def by_hand(loss: Loss, noise: Noise, v: Tensor):
    """The upper loss written out for a score function, and the batches of every step."""
    batches = [loss.perturb(v, eps, noise) for eps in noise["perturb"] or [torch.zeros_like(v)]]
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
        curvature = torch.einsum("bmi,bij,bmj->bm", noise["direction"], hessian, noise["direction"]).mean(1)
        return (0.5 * (s**2).sum(-1) + curvature).mean()

    return [b.v for b in batches], upper


LOSSES = {"dsm": Dsm(0.3), "mdsm": Mdsm((0.1, 1.0), "geometric", 0.1), "ssm": Ssm(directions=2), "sm": Sm()}


def compare(loss: Loss, N: int, sgd: bool, memory: str, exact: bool, shared: bool) -> None:
    method = bilevel(loss, N, sgd, memory, exact, shared)
    begun = start(method, Key(11, 4), UNROLL_LR if sgd else LR)
    _, _, state, v, noise, _ = begun
    gradient, moved, _ = begun.by_autograd()

    batches, upper = by_hand(loss, noise, v)
    batches = batches * (K + N + 1) if len(batches) == 1 else batches
    expected, phi = brute_force.bism_gradient(
        state.theta.params,
        state.phi.params,
        (state.phi.moments.m, state.phi.moments.v, int(state.phi.moments.step_count)),
        batches,
        [n[:, 0] for n in noise["latent"]],
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
        torch.testing.assert_close(moved.phi.params[name], value, rtol=1e-12, atol=1e-13)


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
    bism = Bism(K=0, N=0, divergence=Kl(), posterior=Exact())
    begun = start(ScoreMatching(bism, LOSSES[loss]), Key(1, 0))
    gradient, *_ = begun.method.gradient(NETS)(*begun.given)
    expected, *_ = ScoreMatching(FreeEnergy(), LOSSES[loss]).gradient(NETS)(*begun.given)
    for name, value in expected.items():
        torch.testing.assert_close(gradient[name], value, rtol=1e-10, atol=1e-10)
