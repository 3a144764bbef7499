"""Comparison of every kernel op on the device with its reference on the host in float64: value and both derivatives;
noise must have equal bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.selftest.finding import Measured, SelfCheck, bound_of
from eblvm.engine.training.graphs import distance
from eblvm.kernels import adam_unroll, fisher_step, gibbs, philox
from eblvm.kernels.adam_unroll import Rule
from eblvm.kernels.adam_unroll import reference as adam_reference
from eblvm.kernels.bernoulli_lower import bernoulli_lower
from eblvm.kernels.bernoulli_lower import reference as lower_reference
from eblvm.kernels.elu_of_sum import elu_of_sum
from eblvm.kernels.elu_of_sum import reference as sum_reference
from eblvm.kernels.elu_second_order import elu_second_order
from eblvm.kernels.elu_second_order import reference as elu_reference
from eblvm.kernels.fisher_step import reference as fisher_reference
from eblvm.kernels.grbm import grbm
from eblvm.kernels.grbm import reference as grbm_reference
from eblvm.kernels.grbm_bilevel import Phi, Settings, Theta, grbm_bilevel, lower_steps
from eblvm.kernels.grbm_bilevel import reference as bilevel_reference
from eblvm.kernels.grbm_dsm import grbm_dsm
from eblvm.kernels.grbm_dsm import reference as dsm_reference
from eblvm.kernels.philox import Key, Purpose, purpose
from eblvm.kernels.sliced_hvp import reference as sliced_reference
from eblvm.kernels.sliced_hvp import sliced_hvp

# Batch, visible and latent units: no multiples of a tile, one sample, and one at which the tuner splits a loop.
SIZES = ((33, 57, 41), (1, 57, 41), (25, 560, 400))
M, SIGMA, TAU, SWEEPS = 2, 0.3, 0.4, 2
LEAST = 1e-4  # the least bound of an op
DRAWS = (philox.normal, philox.uniform, philox.logistic, philox.gumbel, philox.rademacher)


class Op(NamedTuple):
    """`op` and `reference` of the same tensors; `orders` is how many derivatives the op implements."""

    op: Callable[..., Any]
    reference: Callable[..., Any]
    tensors: Sequence[Tensor]
    orders: int = 2


def kernels(device: str) -> Iterator[SelfCheck]:
    """Yield the checks of noise, of all ops and of Gibbs chains."""
    for draw in DRAWS:
        yield SelfCheck(f"philox, {draw.__name__}", partial(different_numbers, draw, device))
    for size in SIZES:
        for name in OPS:
            yield SelfCheck(f"{name} {'x'.join(map(str, size))}", partial(deviation, name, size, device))
    yield SelfCheck("gibbs", partial(other_units, device))


def different_numbers(draw: Callable[..., Tensor], device: str) -> Measured:
    here, there = (draw(Key(7, 3), purpose(Purpose.EVAL), 63, (257,), device=d).cpu() for d in ("cpu", device))
    return Measured(float((here != there).sum()), 0, "numbers that differ")


def deviation(name: str, size: tuple[int, int, int], device: str) -> Measured:
    """Return the distance of an op in float32 on the device from its reference in float64 on the host, and as bound a
    margin over what the reference in float32 has."""
    op = OPS[name](*size)
    exact = on_host(op, torch.float64)
    found = derivatives(op.op, [t.to(device) for t in op.tensors], op.orders)
    rounding = distance(on_host(op, torch.float32), exact)
    return Measured(distance(found, exact), bound_of(rounding, LEAST))


def on_host(op: Op, dtype: torch.dtype) -> list[Tensor]:
    return derivatives(op.reference, [t.to(dtype) for t in op.tensors], op.orders)


def derivatives(f: Callable[..., Any], tensors: Sequence[Tensor], orders: int) -> list[Tensor]:
    """Return the values of f, and up to `orders` derivatives of a function of them, in all tensors."""
    leaves = [t.detach().clone().requires_grad_(orders > 0) for t in tensors]
    wave, values = torch.sin, tree_leaves(f(*leaves))
    everything = [y.detach() for y in values]
    for _ in range(orders):
        waves = [wave(y / y.detach().abs().max()).sum() for y in values]  # arguments for which rounding stays small
        values = list(torch.autograd.grad(waves, leaves, create_graph=True))
        everything += [y.detach() for y in values]
        wave = torch.cos
    return everything


def normal(index: int, *shape: int) -> Tensor:
    return philox.normal(Key(7, index), purpose(Purpose.EVAL), shape[0], shape[1:])


def grbm_parameters(D: int, H: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return normal(0, D, H) / D**0.5, normal(1, D), normal(2, H), 0.1 * normal(3, D)


def free_energy(B: int, D: int, H: int) -> Op:
    def value(v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor) -> Any:
        return grbm_reference.value(v, W, b, c, log_sigma, None)[:2]

    return Op(grbm, value, (normal(4, B, D), *grbm_parameters(D, H)))


def energy_at_h(B: int, D: int, H: int) -> Op:
    tensors = normal(4, B, D), *grbm_parameters(D, H), normal(5, B, H).sigmoid()
    return Op(grbm, lambda *t: grbm_reference.value(*t)[:2], tensors)


def denoising_step(B: int, D: int, H: int) -> Op:
    tensors = normal(4, B, D), normal(6, B, D), *grbm_parameters(D, H)
    return Op(partial(grbm_dsm, sigma=SIGMA), partial(dsm_reference.grbm_dsm, sigma=SIGMA), tensors, 0)


def projected_hessian(B: int, D: int, H: int) -> Op:
    tensors = normal(4, B, D), normal(6, M, B, D), *grbm_parameters(D, H)
    return Op(sliced_hvp, lambda *t: sliced_reference.value(*t)[:2], tensors)


def lower_level(B: int, D: int, H: int) -> Op:
    def at_noise(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda logits, x: of(logits, x, (7 * x.detach()).sin(), TAU)

    return Op(at_noise(bernoulli_lower), at_noise(lower_reference.value), (normal(5, B, H), normal(7, B, H)))


def at_moments(D: int, H: int) -> tuple[Tensor, ...]:
    """Return parameters, their gradient, and its first and second moments."""
    return normal(8, D, H), normal(9, D, H), normal(10, D, H), 0.1 + normal(11, D, H).square()


def adam_step(B: int, D: int, H: int) -> Op:
    def third(of: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *t: of(*t, t[0].new_full((), 3.0), t[0].new_full((), 0.01), Rule())

    return Op(third(adam_unroll.adam_unroll), third(adam_reference.step), at_moments(D, H))


def adam_in_place(B: int, D: int, H: int) -> Op:
    """Return the step in place of a list of two tensors, with a clipped norm and weight decay."""
    decay, longest = 0.1, 1.0

    def listed(*tensors: Tensor) -> Any:
        p, g, m, v = ([t, 2 * t[:1]] for t in tensors)
        count, lr = p[0].new_full((), 2.0), p[0].new_full((), 0.01)
        _, norm = adam_unroll.adam_unroll_(p, g, m, v, count, lr, Rule(), decay, longest)
        return p, m, v, norm

    def one_by_one(*tensors: Tensor) -> Any:
        p, g, m, v = ([t, 2 * t[:1]] for t in tensors)
        g, norm = adam_reference.clipped(g, 0, longest)
        g = adam_reference.decayed(p, g, decay)
        at = p[0].new_full((), 3.0), p[0].new_full((), 0.01), Rule()
        return *zip(*(adam_reference.step(*one, *at) for one in zip(p, g, m, v, strict=True)), strict=True), norm

    return Op(listed, one_by_one, at_moments(D, H), 0)


def second_order_elu(B: int, D: int, H: int) -> Op:
    return Op(elu_second_order, lambda x: elu_reference.value(x, 1.0), (normal(5, B, H),))


def elu_of_a_sum(B: int, D: int, H: int) -> Op:
    tensors = normal(5, B, H), normal(6, B, H), normal(7, H)
    return Op(lambda x, r, bias: elu_of_sum(x, r, bias), lambda x, r, bias: sum_reference.value(x, r, bias), tensors)


def fisher_parts(B: int, D: int, H: int) -> Op:
    """Return the pointwise parts of a Fisher lower step, each on what the one before it gives."""

    def of(parts: Any, out: Tensor, eps: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        h = parts.sample(out, eps)
        slope = parts.slope(h)
        r, r_bar = parts.residual(slope, out, eps, weight)
        return h, slope, r, r_bar, parts.curved(slope, h), parts.outputs_bar(h, r_bar, out, eps, None)

    tensors = normal(5, B, 2 * H), normal(6, 2, B, H), normal(7, B)
    return Op(lambda out, *rest: of(fisher_step.backend(out), out, *rest), partial(of, fisher_reference), tensors, 0)


def bilevel(settings: Settings, B: int, D: int, H: int) -> Op:
    """Return the bi-level step: theta's gradient, q and its moments, both losses."""
    noises = 1 if settings.exact else settings.K + settings.N + 1
    latent = [normal(20 + i, B, H) for i in range(noises)]
    moments = (torch.zeros(H, D), torch.zeros(H)) * 2
    weights = normal(8, H, D) / D**0.5, normal(9, H), *moments
    tensors = normal(4, B, D), normal(6, B, D), *grbm_parameters(D, H), *weights, *latent

    def of(step: Callable[..., Any]) -> Callable[..., Any]:
        def flat(v: Tensor, eps: Tensor, *rest: Tensor) -> Any:
            rate = v.new_full((), 1e-3)
            phi = Phi._make([*(t.clone() for t in rest[4:10]), v.new_zeros(())])
            return step(v, [eps], list(rest[10:]), Theta(*rest[:4]), phi, rate, rate, settings)

        return flat

    return Op(of(grbm_bilevel), of(bilevel_reference.grbm_bilevel), tensors, 0)


def real_steps(B: int, D: int, H: int) -> Op:
    """Return the lower steps alone."""
    settings = Settings(K=2, sigma=SIGMA, tau=TAU, exact=True, rule=Rule())
    tensors = bilevel(settings, B, D, H).tensors[:12]

    def of(step: Callable[..., Any]) -> Callable[..., Any]:
        def flat(v: Tensor, eps: Tensor, *rest: Tensor) -> Any:
            phi = Phi._make([*(t.clone() for t in rest[4:]), v.new_zeros(())])
            return step(v, [eps], [], Theta(*rest[:4]), phi, v.new_full((), 1e-3), settings)

        return flat

    return Op(of(lower_steps), of(bilevel_reference.lower_steps), tensors, 0)


SAMPLED = Settings(K=2, sigma=SIGMA, tau=TAU, exact=False, rule=Rule(), N=2)
DUAL = SAMPLED._replace(exact=True, sgd=True, auto_rate=True)
OPS: dict[str, Callable[[int, int, int], Op]] = {
    "grbm, free energy": free_energy,
    "grbm, energy at h": energy_at_h,
    "grbm_dsm": denoising_step,
    "sliced_hvp": projected_hessian,
    "bernoulli_lower": lower_level,
    "adam_unroll": adam_step,
    "adam_unroll, in place": adam_in_place,
    "elu_second_order": second_order_elu,
    "elu_of_sum": elu_of_a_sum,
    "fisher_step": fisher_parts,
    "grbm_bilevel": partial(bilevel, SAMPLED),
    "grbm_bilevel, dual": partial(bilevel, DUAL),
    "grbm_bilevel, lower steps": real_steps,
}


def other_units(device: str) -> Measured:
    """Return the fraction that differs with one start and the same noise: rounding moves a probability past the
    noise."""
    apart = (chains(device) - chains("cpu")).abs().gt(1e-3).double().mean()
    return Measured(float(apart), 1e-2, "of the units differ")


def chains(device: str) -> Tensor:
    B, D, H = SIZES[0]
    v, W, b, c, log_sigma = (t.to(device) for t in (normal(4, B, D), *grbm_parameters(D, H)))
    stream = gibbs.Stream(Key(7, 12), purpose(Purpose.CHAIN_H), purpose(Purpose.CHAIN_V))
    return gibbs.gibbs(v, W, b, c, log_sigma, stream, SWEEPS)[0].cpu()
