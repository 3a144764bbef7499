"""Inputs for the GRBM kernels, and their derivatives through any backend; for the native and the Triton tests."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tests.kernels.comparison import assert_close

SIZES = [(1, 1, 1), (63, 5, 3), (3, 100, 257), (7, 2, 4), (0, 3, 2)]  # B, D, H
TOLERANCE = {torch.float64: 1e-11, torch.float32: 5e-5}
HALF_TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3}


def inputs(
    size: tuple[int, int, int],
    dtype: torch.dtype = torch.float64,
    replicas: tuple[int, ...] = (),
    *,
    M: int = 0,
    W_scale: float | None = None,
) -> list[Tensor]:
    """v, W, b, c, log_sigma; then h, or with M directions u [..., M, B, D]. W's scale is `W_scale`, or D^-1/2."""
    B, D, H = size
    generator = torch.Generator().manual_seed(B + D + H)
    shapes = ((B, D), (D, H), (D,), (H,), (D,), (M, B, D) if M else (B, H))
    scales = (1.0, W_scale or D**-0.5, 1.0, 1.0, 0.3, 1.0)
    return [
        (s * torch.randn(*replicas, *shape, generator=generator, dtype=torch.float64)).to(dtype)
        for s, shape in zip(scales, shapes, strict=True)
    ]


def derivatives(apply: Callable[..., Sequence[Tensor]], *inputs: Tensor | None) -> list[Tensor]:
    """Both results, the gradient of a function of them, and the gradient of a function of that gradient."""
    leaves = [t if t is None else t.detach().requires_grad_() for t in inputs]
    wanted = [t for t in leaves if t is not None]
    results = apply(*leaves)[:2]
    cotangents = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape).requires_grad_() for t in results]
    loss = sum((t * w).sum() for t, w in zip(results, cotangents, strict=True))
    first = torch.autograd.grad(loss, wanted, create_graph=True)
    curved = sum((g * torch.linspace(-1, 1, g.numel(), dtype=g.dtype).view(g.shape)).sum() for g in first)
    second = torch.autograd.grad(curved, [*wanted, *cotangents], materialize_grads=True)
    return [t.detach() for t in (*results, *first, *second)]


def strided(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The same values, no tensor contiguous."""
    return [t if t is None else torch.stack([t, t], -1)[..., 0] for t in tensors]


def assert_every_gradient_alone(apply: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor | None]) -> None:
    """One input that wants a gradient gets the same as among all of them."""
    given = [i for i, t in enumerate(tensors) if t is not None]
    gradients = derivatives(apply, *tensors)[2 : 2 + len(given)]
    for i, gradient in zip(given, gradients, strict=True):
        leaves = [t if t is None else t.clone() for t in tensors]
        leaf = leaves[i].requires_grad_()
        results = apply(*leaves)[:2]
        loss = sum((t * torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view(t.shape)).sum() for t in results)
        torch.testing.assert_close(torch.autograd.grad(loss, leaf)[0], gradient, rtol=1e-12, atol=1e-12)


def assert_gradcheck(apply: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor | None]) -> None:
    leaves = [t if t is None else t.requires_grad_() for t in tensors]
    assert torch.autograd.gradcheck(apply, leaves)
    assert torch.autograd.gradgradcheck(apply, leaves)


def assert_same_with_two_threads(apply: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor | None]) -> None:
    one = derivatives(apply, *tensors)
    torch.set_num_threads(2)
    try:
        assert_close(derivatives(apply, *tensors), one, 1e-12)
    finally:
        torch.set_num_threads(1)


def assert_flops_are_those_of_its_products(run: Callable[[], object]) -> None:
    """What the op says, against torch's own products in it, which sizes beyond the plain loops all are."""
    with FlopCounterMode(display=False) as counted:
        run()
    with torch.profiler.profile(record_shapes=True) as profile:
        run()
    shapes = [event.input_shapes[1:3] for event in profile.events() if event.name == "aten::addmm_"]
    assert counted.get_total_flops() == sum(2 * left[0] * left[1] * right[1] for left, right in shapes) > 0
