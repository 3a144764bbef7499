"""Comparison of every kernel op on the device with its reference on the host in float64: value and both derivatives;
noise must have equal bits."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.training.graphs import distance
from eblvm.kernels import gibbs, philox
from eblvm.kernels.adam_unroll import Rule, adam_unroll
from eblvm.kernels.adam_unroll import reference as adam_reference
from eblvm.kernels.bernoulli_lower import bernoulli_lower
from eblvm.kernels.bernoulli_lower import reference as lower_reference
from eblvm.kernels.elu_second_order import elu_second_order
from eblvm.kernels.elu_second_order import reference as elu_reference
from eblvm.kernels.grbm import grbm
from eblvm.kernels.grbm import reference as grbm_reference
from eblvm.kernels.grbm_dsm import grbm_dsm
from eblvm.kernels.grbm_dsm import reference as dsm_reference
from eblvm.kernels.philox import Key, Purpose, purpose
from eblvm.kernels.sliced_hvp import reference as sliced_reference
from eblvm.kernels.sliced_hvp import sliced_hvp

B, D, H, M = 33, 57, 41, 2  # not multiples of a tile
SIGMA, TAU, SWEEPS = 0.3, 0.4, 2


class Finding(NamedTuple):
    """One check of the self-test: its figure, the figure's bound (None: only recorded), the problem if it failed."""

    check: str
    figure: float | None
    bound: float | None
    unit: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        return not self.problem and (self.bound is None or (self.figure is not None and self.figure <= self.bound))


def guarded(check: str, bound: float | None, unit: str, measure: Callable[[], float]) -> Finding:
    """Run a check; one that raises has failed."""
    try:
        return Finding(check, measure(), bound, unit)
    except Exception:
        return Finding(check, None, bound, unit, traceback.format_exc(limit=-3))


class Op(NamedTuple):
    """`op` and `reference` of the same tensors; `orders` is how many derivatives the op implements."""

    op: Callable[..., Any]
    reference: Callable[..., Any]
    tensors: Sequence[Tensor]
    orders: int = 2


def kernels(device: str) -> Iterator[Finding]:
    """Check noise, ops and Gibbs chains; the bi-level step's kernels are checked within the training steps."""
    for draw in (philox.normal, philox.uniform, philox.logistic, philox.gumbel, philox.rademacher):
        check = partial(different_numbers, draw, device)
        yield guarded(f"noise {draw.__name__}, numbers that differ", 0, "", check)
    for name, op in ops().items():
        orders = ("", ", first order", ", both orders")[op.orders]
        yield guarded(f"{name}{orders}", 1e-4, "relative", partial(deviation, op, device))
    yield guarded("gibbs, fraction of other units", 1e-2, "", partial(other_units, device))


def different_numbers(draw: Callable[..., Tensor], device: str) -> float:
    here, there = (draw(Key(7, 3), purpose(Purpose.EVAL), 63, (257,), device=d).cpu() for d in ("cpu", device))
    return float((here != there).sum())


def normal(index: int, *shape: int) -> Tensor:
    return philox.normal(Key(7, index), purpose(Purpose.EVAL), shape[0], shape[1:])


def grbm_parameters() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return normal(0, D, H) / D**0.5, normal(1, D), normal(2, H), 0.1 * normal(3, D)


def ops() -> dict[str, Op]:
    v, theta, logits = normal(4, B, D), grbm_parameters(), normal(5, B, H)
    u, x, h = normal(6, M, B, D), normal(7, B, H), logits.sigmoid()
    moments = (normal(8, D, H), normal(9, D, H), normal(10, D, H), 0.1 + normal(11, D, H).square())

    def adam(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *t: of(*t, t[0].new_full((), 3.0), t[0].new_full((), 0.01), Rule())

    def lower(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda logits, x: of(logits, x, (7 * x.detach()).sin(), TAU)

    return {
        "grbm, free energy": Op(grbm, lambda v, W, b, c, s: grbm_reference.value(v, W, b, c, s, None)[:2], (v, *theta)),
        "grbm, energy at h": Op(grbm, lambda *t: grbm_reference.value(*t)[:2], (v, *theta, h)),
        "grbm_dsm": Op(
            partial(grbm_dsm, sigma=SIGMA), partial(dsm_reference.grbm_dsm, sigma=SIGMA), (v, u[0], *theta), 0
        ),
        "sliced_hvp": Op(sliced_hvp, lambda *t: sliced_reference.value(*t)[:2], (v, u, *theta)),
        "bernoulli_lower": Op(lower(bernoulli_lower), lower(lower_reference.value), (logits, x)),
        "adam_unroll": Op(adam(adam_unroll), adam(adam_reference.step), moments),
        "elu_second_order": Op(elu_second_order, lambda x: elu_reference.value(x, 1.0), (x,)),
    }


def deviation(op: Op, device: str) -> float:
    """Return the distance of the op in float32 on the device from its reference in float64 on the host."""
    results = derivatives(op.op, [t.to(device) for t in op.tensors], op.orders)
    return distance(results, derivatives(op.reference, [t.double() for t in op.tensors], op.orders))


def derivatives(f: Callable[..., Any], tensors: Sequence[Tensor], orders: int) -> list[Tensor]:
    """Return the values of f, and up to `orders` derivatives of a function of them, in all tensors."""
    leaves = [t.detach().requires_grad_(orders > 0) for t in tensors]
    wave, values = torch.sin, tree_leaves(f(*leaves))
    everything = [y.detach() for y in values]
    for _ in range(orders):
        waves = [wave(y / y.detach().abs().max()).sum() for y in values]  # arguments for which rounding stays small
        values = list(torch.autograd.grad(waves, leaves, create_graph=True))
        everything += [y.detach() for y in values]
        wave = torch.cos
    return everything


def other_units(device: str) -> float:
    """The fraction that differs with one start and the same noise: rounding moves a probability past the noise."""
    return float((chains(device) - chains("cpu")).abs().gt(1e-3).double().mean())


def chains(device: str) -> Tensor:
    v, W, b, c, log_sigma = (t.to(device) for t in (normal(4, B, D), *grbm_parameters()))
    stream = gibbs.Stream(Key(7, 12), purpose(Purpose.CHAIN_H), purpose(Purpose.CHAIN_V))
    return gibbs.gibbs(v, W, b, c, log_sigma, stream, SWEEPS)[0].cpu()
