"""Ops with their own derivatives: an autograd.Function for every order, from the parts that differ between ops.

A backend is anything with one function for each order (`value`, `first`, ...). Leading axes are replicas to all of
them, so `vmap` puts its axis first in every tensor. Such a Function works under plain autograd and under torch.func.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.runtime.dispatch import Function

# pull(backend, arguments, kept, cotangents, wanted) -> a gradient for every argument, None where there is none.
Pull = Callable[[Any, list[Any], Sequence[Tensor], tuple[Tensor, ...], tuple[bool, ...]], Sequence[Any]]


def order(
    name: str, pull: Pull, *, results: int | None = None, keeps: int = 0, forgets: Collection[int] = ()
) -> Callable[..., Any]:
    """`backend.<name>(*arguments)` with its derivative, called as `f(backend, *arguments)`.

    `pull` is its derivative. The last `keeps` outputs are saved for it, and all arguments but those numbered in
    `forgets`. Outputs beyond the first `results` carry no gradient: they are only saved.
    """

    class Order(Function):
        @staticmethod
        def forward(backend: Any, *arguments: Any) -> Any:
            out = getattr(backend, name)(*arguments)
            return out if isinstance(out, Tensor) else tuple(out)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.backend, *arguments = inputs
            outputs = (output,) if isinstance(output, Tensor) else output
            if results is not None:
                ctx.mark_non_differentiable(*outputs[results:])
            ctx.saved = [i for i, a in enumerate(arguments) if isinstance(a, Tensor) and i not in forgets]
            ctx.rest = [None if isinstance(a, Tensor) else a for a in arguments]
            ctx.save_for_backward(*(arguments[i] for i in ctx.saved), *outputs[len(outputs) - keeps :])

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
            arguments, count = list(ctx.rest), len(ctx.saved)
            for i, t in zip(ctx.saved, ctx.saved_tensors[:count], strict=True):
                arguments[i] = t
            kept = ctx.saved_tensors[count:]
            return None, *pull(ctx.backend, arguments, kept, cotangents[:results], ctx.needs_input_grad[1:])

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], backend: Any, *arguments: Any) -> tuple[Any, Any]:
            out = call(backend, *_replicas_first(info.batch_size, in_dims[1:], arguments))
            return out, 0 if isinstance(out, Tensor) else (0,) * len(out)

    def call(backend: Any, *arguments: Any) -> Any:
        # The compiler drops a Function's second derivative in silence, and fuses the reference by itself.
        if torch.compiler.is_compiling():
            return Order.forward(backend, *arguments)
        # Without differentiation or vmap the backend is called directly: the rest costs more than a small step.
        tracked = torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments)
        if tracked or torch._C._are_functorch_transforms_active():
            return Order.apply(backend, *arguments)
        return Order.forward(backend, *arguments)

    return call


def by_reference(fn: Callable[..., Any], remade: Collection[int] = ()) -> Pull:
    """The pull of the last order: torch differentiates `fn(*arguments)`, so every order beyond is right as well.

    Arguments of the numbers in `remade` get no gradient: `fn` computes them again from the others.
    """

    def pull(
        backend: Any,
        arguments: list[Any],
        kept: Sequence[Tensor],
        cotangents: tuple[Tensor, ...],
        wanted: tuple[bool, ...],
    ) -> list[Any]:
        chosen = [i for i, want in enumerate(wanted) if want and i not in remade]

        def of_chosen(*tensors: Tensor) -> Any:
            given = dict(zip(chosen, tensors, strict=True))
            return fn(*(given.get(i, a) for i, a in enumerate(arguments)))

        out, back, *_ = torch.func.vjp(of_chosen, *(arguments[i] for i in chosen))
        gradients = dict(zip(chosen, back(cotangents if isinstance(out, tuple) else cotangents[0]), strict=True))
        return [gradients.get(i) for i in range(len(arguments))]

    return pull


def _replicas_first(count: int, in_dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> list[Any]:
    return [
        a if not isinstance(a, Tensor) else a.expand(count, *a.shape) if dim is None else a.movedim(dim, 0)
        for a, dim in zip(arguments, in_dims, strict=True)
    ]
