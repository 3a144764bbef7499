"""N steps on the lower level, unrolled so that the upper gradient flows through them (BiSM Eq. 12-14).

`step(state, context) -> state` is one pure lower step on a tree of tensors (parameters and moments); `context` has
every other tensor it reads (features, noisy batch, noise, theta), because in memory mode `recompute` the context is all
that is saved.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from eblvm.engine.autodiff.derivatives import inside_torch_func, vjp

T = TypeVar("T")


def unroll(step: Callable[[T, Any], T], state: T, contexts: Sequence[Any], memory: str = "store") -> T:
    """Return the state after one step per context. `store` keeps the graph of each step, `recompute` its inputs only;
    for a `compiled` step the compiler chooses."""
    for context in contexts:
        state = _recomputed(step, state, context) if memory == "recompute" else step(state, context)
    return state


def _recomputed(step: Callable[[T, Any], T], state: T, context: Any) -> T:
    leaves, spec = tree_flatten((state, context))

    def flat_step(flat: list[Tensor]) -> list[Tensor]:
        return tree_flatten(step(*tree_unflatten(flat, spec)))[0]

    outputs = _Recomputed.apply(flat_step, *leaves)
    return tree_unflatten(list(outputs), tree_flatten(state)[1])


class _Recomputed(torch.autograd.Function):
    """A lower step that saves its inputs and rebuilds its second-order graph inside backward, step by step."""

    generate_vmap_rule = True

    @staticmethod
    def forward(flat_step: Callable[[list[Tensor]], list[Tensor]], *leaves: Tensor) -> tuple[Tensor, ...]:
        given = {id(x) for x in leaves}  # torch cannot save what it returns as it is: a step count that stays
        return tuple(x.view_as(x) if id(x) in given else x for x in flat_step(list(leaves)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.flat_step = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() and not inside_torch_func():
            raise RuntimeError(
                "a recomputed lower step has no second derivative of its own; differentiate the unroll twice with "
                "memory mode 'store'"
            )
        with torch.no_grad():
            _, pull = vjp(ctx.flat_step, list(ctx.saved_tensors))
            return (None, *pull(list(cotangents), materialize=False))
