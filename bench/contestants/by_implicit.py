"""Implicit differentiation in place of N unrolled steps of SGD: TorchOpt's and betty's solvers with N terms.

Where the lower level is at its minimum, N terms of Neumann's series at the unroll's rate are its gradient exactly. K
steps do not reach it in training, so the two gradients differ there; tests/bench/contest/test_contest.py tests the
equality at a minimum.
"""

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.bench.contestants.by_naive import PlainGrbm, unrolls
from eblvm.bench.contestants.roster import Entrant, contestant
from eblvm.bench.tools.registry import Case

DEVIATION = "Implicit differentiation where K steps have not reached the lower level's minimum; at one it is equal."
CG = "CG goes for the whole inverse, N = infinity: another gradient than that of N short steps."
BETTY_CG = f"{CG} betty 0.1.1 also computes CG's next direction from the old residual, so its result is not CG's."


def noisy_batch(method: Any, v: Tensor, draw: Any) -> Tensor:
    """The shared noisy batch; it draws the noise of all N steps."""
    return [v + method.sigma * draw()[0] for _ in range(method.N)][-1]


def by_torchopt(method: Any, solver: str, v: Tensor, draw: Any) -> Any:
    """phi as a function of theta by `torchopt.diff.implicit.custom_root`."""
    from torchopt import linear_solve
    from torchopt.diff.implicit import custom_root

    x, N = noisy_batch(method, v, draw), method.N
    if solver == "neumann":
        solve = linear_solve.solve_inv(ns=True, maxiter=N - 1, alpha=method.sgd_rate)  # its series has a term more
    else:
        solve = linear_solve.solve_cg(maxiter=N)

    def lower_loss(phi: tuple[Tensor, ...], theta: tuple[Tensor, ...]) -> Tensor:
        """The exact KL's part that phi or theta move: at h = sigmoid(l), log q - c.h - v W h."""
        logits = F.linear(x, *phi)
        h = torch.sigmoid(logits)
        return (h * logits - F.softplus(logits) - h * F.linear(x, theta[0].t(), theta[2])).sum(-1).mean()

    warnings.filterwarnings("ignore", "We've integrated functorch", FutureWarning)  # its own call

    @custom_root(torch.func.grad(lower_loss), argnums=1, solve=solve)
    def solved(phi: tuple[Tensor, ...], theta: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return phi

    phi = tuple(p.detach().clone().requires_grad_() for p in method.posterior.parameters())
    return list(solved(phi, tuple(method.model.parameters())))


def by_betty(method: Any, kind: str, v: Tensor, draw: Any) -> list[Tensor]:
    """theta's gradient: the direct part by autograd, the other by `betty.hypergradient`."""
    from betty.configs import Config
    from betty.hypergradient import get_grads

    method.lower_steps(v, draw)
    x = noisy_batch(method, v, draw)
    phi, theta = list(method.posterior.parameters()), list(method.model.parameters())
    config = Config(type=kind, neumann_iterations=method.N - 1, neumann_alpha=method.sgd_rate, cg_iterations=method.N)
    lower = SimpleNamespace(
        config=config,
        paths=[],
        cur_batch=x,
        training_step_exec=lambda x: method.lower_loss(phi, x, None),
        trainable_parameters=lambda: phi,
        parameters=lambda: phi,
    )
    read = [p for name, p in method.model.named_parameters() if name in ("W", "c")]  # of theta, by the lower level
    upper = SimpleNamespace(trainable_parameters=lambda: read)
    loss = upper_loss(method, v, draw)
    direct = torch.autograd.grad(loss, theta, retain_graph=True, materialize_grads=True)
    implicit = dict(zip(map(id, read), get_grads(loss, [upper, lower, upper], True), strict=True))
    return [d + implicit[id(p)] if id(p) in implicit else d for d, p in zip(direct, theta, strict=True)]


def upper_loss(method: Any, v: Tensor, draw: Any) -> Tensor:
    eps, logistic = draw()
    phi = list(method.posterior.parameters())
    x = (v + method.sigma * eps).requires_grad_()
    h = method.sample(F.linear(x.detach(), *phi), logistic)
    log_ratio = -method.model.energy(x, h) - method.log_q(F.linear(x, *phi), h)
    (score,) = torch.autograd.grad(log_ratio.sum(), x, create_graph=True)
    return 0.5 * (score + eps / method.sigma).square().sum(-1).mean()


def adapt_torchopt(solver: str, method: Any) -> None:
    method.unrolled_steps = partial(by_torchopt, method, solver)


def adapt_betty(kind: str, method: Any) -> None:
    method.gradient = partial(by_betty, method, kind)


def can(case: Case) -> bool:
    c = case.config
    return unrolls(case, "sgd") and c["divergence"] == "kl-exact" and c["noise"] == "shared" and not c.replicated


@contestant("torchopt-neumann", "grbm", needs="torchopt", deviation=DEVIATION)
def torchopt_neumann(case: Case) -> Entrant | None:
    return PlainGrbm(case, partial(adapt_torchopt, "neumann")) if can(case) else None


@contestant("torchopt-cg", "grbm", needs="torchopt", deviation=CG)
def torchopt_cg(case: Case) -> Entrant | None:
    return PlainGrbm(case, partial(adapt_torchopt, "cg")) if can(case) else None


@contestant("betty-neumann", "grbm", needs="betty", deviation=DEVIATION)
def betty_neumann(case: Case) -> Entrant | None:
    return PlainGrbm(case, partial(adapt_betty, "neumann")) if can(case) else None


@contestant("betty-cg", "grbm", needs="betty", deviation=BETTY_CG)
def betty_cg(case: Case) -> Entrant | None:
    return PlainGrbm(case, partial(adapt_betty, "cg")) if can(case) else None
