"""A convolutional net's weights as a step on a GPU reads them: folded, cast and split by one launch, and one backward.

Every kernel is used twice: by the value, and by the score, the value's derivative. The loss's backward reaches both
uses, and torch adds their gradients kernel by kernel. Here each use gets a tensor of its own; the sums of all kernels
are one launch over a list. So are the casts of all weights to 16 bits, and those of their gradients back.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.convolution import Convolution
from eblvm.engine.nets.base import Module, bound
from eblvm.kernels.runtime.dispatch import Function


def prepared(net: Module, dtype: torch.dtype) -> Module:
    """Return a view of a net with the weights of its convolutions in `dtype`, for one pass and its score."""
    view = bound(net, {}, {}, "")
    layers = [m for m in view.modules() if isinstance(m, nn.Conv2d)]
    twice = [m for m in layers if isinstance(m, Convolution)]
    once = [(m, name) for m in layers for name, p in m._parameters.items() if p is not None]
    once = [(m, name) for m, name in once if name == "bias" or m not in twice]
    weights = [m.kernel() for m in twice] + [m._parameters[name] for m, name in once]
    made = _Prepared.apply(dtype, len(twice), *weights)
    for kept, w, pulled in zip(twice, made, made[len(weights) :], strict=False):
        kept.prepared = w, pulled
    for (m, name), p in zip(once, made[len(twice) : len(weights)], strict=True):
        m._parameters[name] = p
    return view


def by_parts(net: Module, dtype: torch.dtype) -> tuple[Module, Callable[[Any], Any]]:
    """Return a net and a function that prepares a child of it just before its pass.

    With one process the whole is one list. With several every child has its own: autograd runs the youngest node first,
    so a child's gradients are complete, and travel, when backward has left it."""
    if collectives.size() == 1:
        return prepared(net, dtype), lambda part: part
    return net, partial(prepared, dtype=dtype)


class _Prepared(Function):
    """Weights in `dtype`, and the first `count` of them once more, at the end."""

    @staticmethod
    def forward(dtype: torch.dtype, count: int, *weights: Tensor) -> tuple[Tensor, ...]:
        made = list(_cast([w.detach() for w in weights], dtype))
        return *made, *(w.detach() for w in made[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, ctx.count, *weights = inputs
        ctx.dtype = weights[0].dtype
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        total: list[Any] = list(gradients[: len(gradients) - ctx.count])
        again = gradients[len(total) :]
        both = [i for i, g in enumerate(again) if g is not None and total[i] is not None]
        sums = torch._foreach_add([total[i] for i in both], [again[i] for i in both]) if both else ()  # type: ignore[misc]
        total[: ctx.count] = [g if t is None else t for t, g in zip(total, again, strict=False)]
        for i, g in zip(both, sums, strict=True):
            total[i] = g
        arrived = [i for i, g in enumerate(total) if g is not None]
        for i, g in zip(arrived, _cast([total[i] for i in arrived], ctx.dtype), strict=True):
            total[i] = g
        return None, None, *total


def _cast(tensors: Any, dtype: torch.dtype) -> Any:
    """Return tensors of one type in another one, by one launch."""
    if not tensors or tensors[0].dtype == dtype:
        return tensors
    if torch.is_grad_enabled():  # a list's copy in place has no graph
        return [x.to(dtype) for x in tensors]
    made = [torch.empty_like(x, dtype=dtype) for x in tensors]
    torch._foreach_copy_(made, tensors)
    return made
