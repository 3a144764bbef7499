"""TorchOpt: the unrolled Adam by its functional optimiser, plain and with its own C++ operator."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.by_higher import as_phi
from eblvm.bench.contestants.by_naive import PlainGrbm, unrolls
from eblvm.bench.contestants.roster import Entrant, contestant
from eblvm.bench.tools.registry import Case


def unrolled_steps(method: Any, accelerated: bool, v: Tensor, draw: Any) -> Any:
    """phi_N(theta) by `torchopt.adam`, from phi's real moments."""
    import torchopt

    rule = torchopt.adam(method.lr, method.betas, eps=1e-8, eps_root=1e-16, use_accelerated_op=accelerated)
    phi = tuple(method.posterior.parameters())
    state = moved_state(rule.init(phi), [method.lower_optimizer.state[p] for p in phi])
    for _ in range(method.N):
        eps, noise = draw()
        loss = method.lower_loss(as_phi(method, phi), v + method.sigma * eps, noise)
        grads = torch.autograd.grad(loss, phi, create_graph=True)
        updates, state = rule.update(grads, state, params=phi, inplace=False)
        phi = torchopt.apply_updates(phi, updates, inplace=False)
    return as_phi(method, phi)


def moved_state(fresh: Any, real: list[Any]) -> Any:
    """TorchOpt's state with the moments of torch's optimiser, where that has made a step."""
    if not real[0]:
        return fresh
    adam = fresh[0]._replace(
        mu=tuple(s["exp_avg"] for s in real),
        nu=tuple(s["exp_avg_sq"] for s in real),
        count=tuple(s["step"].to(s["exp_avg"].dtype) for s in real),  # whole numbers would give float32 corrections
    )
    return (adam, *fresh[1:])


def adapt(accelerated: bool, method: Any) -> None:
    method.unrolled_steps = partial(unrolled_steps, method, accelerated)


@contestant("torchopt", "grbm", "toy", needs="torchopt")
def grbm(case: Case) -> Entrant | None:
    return PlainGrbm(case, partial(adapt, False)) if unrolls(case, "adam") else None


@contestant("torchopt-accelerated", "grbm", "toy", needs="torchopt")
def accelerated(case: Case) -> Entrant | None:
    return PlainGrbm(case, partial(adapt, True)) if unrolls(case, "adam") else None
