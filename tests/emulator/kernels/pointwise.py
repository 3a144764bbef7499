"""The kernels without a product: ELU, the posterior's lower step, Adam, random numbers."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels import bernoulli_lower, elu_second_order, philox
from eblvm.kernels.adam_unroll import reference as adam_reference
from eblvm.kernels.adam_unroll import triton as adam
from eblvm.kernels.adam_unroll import triton_lists
from eblvm.kernels.bernoulli_lower import triton as bernoulli
from eblvm.kernels.elu_second_order import triton as elu
from eblvm.kernels.philox import Purpose
from eblvm.kernels.philox import triton as philox_triton
from eblvm.kernels.philox.reference import Kind
from tests.emulator.kernels.case import CAPABILITIES, FP64, IEEE, POINTWISE, Case, Numbers
from tests.kernels import adam_cases, bernoulli_cases, elu_cases

PURPOSE = philox.purpose(Purpose.PERTURB, 3)
ELU_SIZES = [(1,), (63,), (100, 3), (2, 3, 5, 41), (33, 257), (8, 512)]
LOWER_SIZES = [(1, 1), (25, 41), (33, 257), (2, 100, 3)]
ADAM_SIZES = [(1,), (25, 41), (3, 700)]
SEEDS = torch.tensor([7, 2**40 + 3, 2**62 + 17])


def cases() -> Iterator[Case]:
    for numbers, capability in itertools.product(POINTWISE, CAPABILITIES):
        for size in ELU_SIZES:
            yield elu_case(numbers, size, capability)
        for size, kind in itertools.product(LOWER_SIZES, bernoulli_cases.NOISES):
            yield lower_case(numbers, size, kind, capability)
    for numbers, capability in itertools.product((IEEE, FP64), CAPABILITIES):
        for size, replicas in itertools.product(ADAM_SIZES, ((), (3,))):
            yield adam_case(numbers, size, replicas, capability)
        for replicas in ((), (2,)):
            yield list_case(numbers, replicas, capability)
    for capability in CAPABILITIES:
        yield from draws(capability)


def elu_case(numbers: Numbers, size: tuple[int, ...], capability: int) -> Case:
    def given() -> tuple[Tensor, ...]:
        return elu_cases.inputs(size, numbers.dtype)

    launch, expected = (lambda tensors, op=op: elu_orders(op, *tensors) for op in (elu, elu_second_order.reference))
    return Case("elu_second_order", f"{numbers.name} {size}", capability, numbers, given, launch, expected)


def elu_orders(op: Any, x: Tensor, g: Tensor, u: Tensor) -> Any:
    alpha = elu_cases.ALPHA
    return op.value(x, alpha), op.first(g, x, alpha), op.second(u, g, x, alpha)


def lower_case(numbers: Numbers, size: tuple[int, ...], kind: str, capability: int) -> Case:
    def given() -> Any:
        """g, u, w, logits, x, and the noise as numbers."""
        logits, x = bernoulli_cases.inputs(size, numbers.dtype)
        u, w = (t.reshape(size) for t in bernoulli_cases.inputs(size[::-1], numbers.dtype))
        noise = None if kind == "exact" else bernoulli_cases.noise_of("given", logits)
        return x.sum(-1).sin(), u, w, logits, x, noise

    def launch(tensors: Any) -> Any:
        *rest, noise = tensors
        if kind == "drawn":
            stream = bernoulli_cases.noise_of("drawn", rest[3])
            seed = torch.as_tensor(stream.key.seed)
            return lower_orders(bernoulli, *rest, None, seed, stream.key.step, stream.purpose, stream.first)
        return lower_orders(bernoulli, *rest, noise, None, 0, 0, 0)

    def expected(tensors: Any) -> Any:
        return lower_orders(bernoulli_lower.reference, *tensors)

    return Case("bernoulli_lower", f"{numbers.name} {size} {kind}", capability, numbers, given, launch, expected)


def lower_orders(op: Any, g: Tensor, u: Tensor, w: Tensor, logits: Tensor, x: Tensor, *noise: Any) -> Any:
    rest = (logits, x, *noise, bernoulli_cases.TAU)
    return op.value(*rest), op.first(g, *rest), op.second(g, u, w, *rest)


def adam_case(numbers: Numbers, size: tuple[int, ...], replicas: tuple[int, ...], capability: int) -> Case:
    def given() -> list[Tensor]:
        return adam_cases.inputs(size, numbers.dtype, replicas)

    name = f"{numbers.name} {size}" + "".join(f" {n} replicas" for n in replicas)
    return Case("adam_unroll", name, capability, numbers, given, adam_orders, lambda given: adam_expected(*given))


def list_case(numbers: Numbers, replicas: tuple[int, ...], capability: int) -> Case:
    def given() -> Any:
        return adam_cases.list_inputs(numbers.dtype, replicas)

    name = numbers.name + "".join(f" {n} replicas" for n in replicas)
    launch, expected = (lambda given, of=of: of(*given) for of in (list_orders, lists_expected))
    return Case("adam_unroll lists", name, capability, numbers, given, launch, expected)


def adam_orders(given: list[Tensor]) -> Any:
    p, g, m, v, t, lr = given
    return adam.step(*given, adam_cases.RULE), adam.reverse(p, g.cos(), m.sin(), g, m, v, t, lr, adam_cases.RULE)


def adam_expected(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor) -> Any:
    step, pull = torch.func.vjp(lambda g, m, v: adam_reference.step(p, g, m, v, t, lr, adam_cases.RULE), g, m, v)
    return step, pull((p, g.cos(), m.sin()))


def list_orders(lists: list[list[Tensor]], count: Tensor, lr: Tensor) -> Any:
    """Steps to new memory and in place, the reverse, and what decides whether there is a step."""
    p, g, m, v = lists
    rule = adam_cases.RULE
    *moved, after = triton_lists.steps(*lists, count, lr, rule)
    places = [[x.clone() for x in xs] for xs in (p, m, v)]
    average = [x.sin() for x in p]
    go = torch.tensor(True)
    _, norm = triton_lists.steps_(places[0], g, *places[1:], count, lr, rule, 0.1, 2.0, average, 0.999, go)
    back = triton_lists.reverses(p, g, m, g, m, v, count, lr, rule)
    finite = triton_lists.all_finite(p)
    triton_lists.restore_(places[0], p, torch.tensor(False))
    return moved, after, norm, places[1:], average, back, finite.double(), places[0]


def lists_expected(lists: list[list[Tensor]], count: Tensor, lr: Tensor) -> Any:
    p, g, m, v = lists
    rule, lead = adam_cases.RULE, count.dim()

    def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return adam_reference.step(p, g, m, v, count + 1, lr, rule)

    norm = sum(x.square().flatten(lead).sum(-1) for x in g if x.numel()).sqrt()
    scale = (2.0 / norm).clamp(max=1)
    clipped = [scale.view(*scale.shape, *[1] * (x.dim() - lead)) * x + 0.1 * y for x, y in zip(g, p, strict=True)]
    in_place = [step(*one) for one in zip(p, clipped, m, v, strict=True)]
    average = [torch.lerp(new, x.sin(), 0.999) for (new, *_), x in zip(in_place, p, strict=True)]
    pulls = [
        torch.func.vjp(lambda g, m, v, p=p: step(p, g, m, v), *rest)[1](bars)
        for p, *rest, bars in zip(p, g, m, v, zip(p, g, m, strict=True), strict=True)
    ]
    moved = [list(part) for part in zip(*(step(*one) for one in zip(p, g, m, v, strict=True)), strict=True)]
    places = [[new[k] for new in in_place] for k in (1, 2)]
    back = [list(part) for part in zip(*pulls, strict=True)]
    return moved, count + 1, norm, places, average, back, torch.tensor(1.0), p


def draws(capability: int) -> Iterator[Case]:
    """Yield random numbers, whose bits are those of the reference."""
    for kind, (count, width) in itertools.product(Kind, ((1, 1), (33, 57))):

        def given(kind: Kind = kind, count: int = count, width: int = width) -> Any:
            return SEEDS, 2**32 - 2, PURPOSE, count, width, 11, int(kind)

        launch, expected = (lambda given, op=op: op.philox(*given) for op in (philox_triton, philox.reference))
        yield Case("philox", f"{kind.name} {count}x{width}", capability, IEEE, given, launch, expected, tolerance=0.0)
    listed = [(int(Kind.NORMAL), PURPOSE, 7, 257), (int(Kind.LOGISTIC), PURPOSE + 1, 7, 6)]
    listed += [(int(Kind.UNIFORM), PURPOSE, 40, 33), (int(Kind.NORMAL), 5, 3, 0)]

    def of_list(seeds: Tensor) -> list[Tensor]:
        out = [torch.empty(len(seeds), count, width) for _, _, count, width in listed]
        philox_triton.philox_list(seeds, 2**32 - 2, 11, listed, out)
        return out

    def each(seeds: Tensor) -> list[Tensor]:
        return [philox.reference.philox(seeds, 2**32 - 2, p, n, w, 11, k) for k, p, n, w in listed]

    yield Case("philox list", "three kinds", capability, IEEE, lambda: SEEDS, of_list, each, tolerance=0.0)
