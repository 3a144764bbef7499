"""higher: the unrolled Adam by its differentiable optimiser on the patched posterior."""

import math
from typing import Any

from torch import Tensor

from eblvm.bench.contestants.by_naive import PlainGrbm, unrolls
from eblvm.bench.contestants.deep import PlainDeep
from eblvm.bench.contestants.roster import Entrant, contestant
from eblvm.bench.naive import BiDsm
from eblvm.bench.tools.registry import Case


def unrolled_steps(method: Any, v: Tensor, draw: Any) -> Any:
    """phi_N(theta) by `higher.innerloop_ctx`, from phi's real moments."""
    import higher

    before = next(iter(method.lower_optimizer.state.values()), {"step": 0})
    count, b2 = int(before["step"]), method.betas[1]
    with higher.innerloop_ctx(method.posterior, method.lower_optimizer, copy_initial_weights=False) as (net, optimizer):
        for state in (s for group in optimizer.state for s in group.values()):
            state["step"] = count  # a number: as torch's float32 tensor it would round the bias corrections
        for n in range(method.N):
            eps, noise = draw()
            loss = method.lower_loss(as_phi(method, net.fast_params), v + method.sigma * eps, noise)
            # higher adds eps before the bias correction, torch after it.
            optimizer.step(loss, override={"eps": [1e-8 * math.sqrt(1 - b2 ** (count + n + 1))]})
        return as_phi(method, net.fast_params)


def as_phi(method: Any, tensors: Any) -> Any:
    """The posterior's parameters in the form that the naive procedure expects: a list, or by name."""
    if isinstance(method, BiDsm):
        return list(tensors)
    names = [name for name, _ in method.posterior.named_parameters()]
    return dict(zip(names, tensors, strict=True))


def adapt(method: Any) -> None:
    method.unrolled_steps = lambda v, draw: unrolled_steps(method, v, draw)


@contestant("higher", "grbm", "toy", needs="higher")
def grbm(case: Case) -> Entrant | None:
    return PlainGrbm(case, adapt) if unrolls(case, "adam") else None


@contestant("higher", "deep", needs="higher")
def deep(case: Case) -> Entrant | None:
    return PlainDeep(case, adapt) if unrolls(case, "adam") else None
