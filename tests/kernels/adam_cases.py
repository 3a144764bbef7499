"""Inputs for the differentiable Adam step, and its derivatives through any backend."""

import torch
from torch import Tensor

from eblvm.kernels import adam_unroll
from eblvm.kernels.adam_unroll import Rule, reference
from tests.kernels.comparison import assert_close

SIZES = [(1,), (63,), (100, 3), (257,), (0,), (5, 0)]
RULE = Rule(0.9, 0.95, 1e-8, 1e-16)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def inputs(size: tuple[int, ...], dtype: torch.dtype = torch.float64, replicas: tuple[int, ...] = ()) -> list[Tensor]:
    """p, g, m, v, t, lr; a few elements have zero gradient and moments, as at the start of a run."""
    generator = torch.Generator().manual_seed(sum(size))
    p, g, m, v = (torch.randn((*replicas, *size), generator=generator, dtype=torch.float64) for _ in range(4))
    v = 0.05 + v.square() * 0.1  # away from zero, where curvatures of 1/v^2 would exceed every tolerance
    if p.numel() > 8:
        for x in (g, m, v):
            x.view(-1)[:2] = 0.0
    count = torch.arange(1, 1 + torch.Size(replicas).numel(), dtype=torch.float64).view(replicas)
    return [x.to(dtype) for x in (p, g, m, v, count, 0.01 * count)]


def derivatives(apply, p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor) -> list[Tensor]:
    """(p', m', v'), the gradient of a function of them, and the gradient of a function of that gradient."""
    leaves = [x.detach().requires_grad_() for x in (p, g, m, v)]
    out = apply(*leaves, t, lr)
    loss = sum((k + 1) * x.sin().sum() for k, x in enumerate(out))
    first = torch.autograd.grad(loss, leaves, create_graph=True)
    # Elements with v = 0 have curvatures near 1/eps_root: left out of the second derivative.
    usual = (v > 0).to(p.dtype)
    second = torch.autograd.grad(sum((x * usual).cos().sum() for x in first), leaves)
    return [x.detach() for x in (*out, *(y * usual for y in first))] + [x * usual for x in second]


def check_non_contiguous(backend: object) -> None:
    *tensors, t, lr = inputs((8, 6))
    tensors = [x.T[::2] for x in tensors]
    expected = derivatives(plain, *(x.contiguous() for x in tensors), t, lr)
    assert_close(derivatives(through(backend), *tensors, t, lr), expected, 1e-12)


LIST_SIZES = [(5,), (63,), (0,), (70, 60), (2048,), (5, 4, 3, 3)]  # one crosses tiles, one fills its tile


def list_inputs(dtype: torch.dtype, replicas: tuple[int, ...] = ()) -> tuple[list[list[Tensor]], Tensor, Tensor]:
    """p, g, m, v of several parameters, the last in the memory order of images; the step count before, and lr."""
    cases = [inputs(size, dtype, replicas) for size in LIST_SIZES]
    if not replicas:
        cases[-1][:4] = [x.contiguous(memory_format=torch.channels_last) for x in cases[-1][:4]]
    lists = [[case[k] for case in cases] for k in range(4)]
    return lists, cases[0][4] - 1, cases[0][5]


def list_derivatives(steps, lists: list[list[Tensor]], step_count: Tensor, lr: Tensor) -> list[Tensor]:
    """Every p', m', v', the gradient of a function of them, and the gradient of a function of that gradient."""
    leaves = [[x.detach().requires_grad_() for x in xs] for xs in lists]
    flat = [x for xs in leaves for x in xs]
    out = steps(*leaves, step_count, lr)
    loss = sum((k + 1) * x.sin().sum() for k, xs in enumerate(out[:3]) for x in xs)
    without_graph = torch.autograd.grad(loss, flat, retain_graph=True)
    first = torch.autograd.grad(loss, flat, create_graph=True)
    usual = [(v > 0).to(v.dtype) for v in lists[3]] * 4
    second = torch.autograd.grad(sum((x * keep).cos().sum() for x, keep in zip(first, usual, strict=True)), flat)
    kept = [x * keep for xs in (without_graph, first, second) for x, keep in zip(xs, usual, strict=True)]
    return [x.detach() for x in (*(x for xs in out[:3] for x in xs), *kept)]


def plain_lists(p, g, m, v, step_count: Tensor, lr: Tensor):
    moved = [reference.step(*one, step_count + 1, lr, RULE) for one in zip(p, g, m, v, strict=True)]
    return [list(part) for part in zip(*moved, strict=True)]


def check_in_place(backend, size: tuple[int, ...], dtype: torch.dtype, replicas: tuple[int, ...], order) -> None:
    """The step of two parameters, one laid out by `order`, in their own memory is `reference.step`."""
    p, g, m, v, t, lr = inputs(size, dtype, replicas)
    norm = (2 * g.square().sum(tuple(range(len(replicas), g.dim())))).sqrt()
    for clip_norm in (None, 0.7 * float(norm.max())):
        scale = torch.ones_like(norm) if clip_norm is None else (clip_norm / (norm + 1e-30)).clamp(max=1)
        for decay in (0.0, 0.1):
            adjusted = scale.view(*scale.shape, *[1] * len(size)) * g + decay * p
            expected = reference.step(p, adjusted, m, v, t, lr, RULE)
            laid_out, other = [order(x) for x in (p, m, v)], [x.clone() for x in (p, m, v)]
            addresses = [x.data_ptr() for x in laid_out]
            p_, m_, v_ = (list(pair) for pair in zip(laid_out, other, strict=True))
            counted = adam_unroll._steps_(backend, p_, [g, g], m_, v_, t - 1, lr, RULE, decay, clip_norm)
            for moved in (laid_out, other):
                assert_close(moved, list(expected), TOLERANCE[dtype])
            assert_close(list(counted), [t, norm], TOLERANCE[dtype])
            assert [x.data_ptr() for x in laid_out] == addresses


ORDERS = {
    "contiguous": torch.clone,
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x.clone(),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
}


def through(backend: object):
    return lambda *tensors: adam_unroll._step(backend, *tensors, RULE)


def plain(*tensors: Tensor) -> tuple[Tensor, ...]:
    return reference.step(*tensors, RULE)
