"""Steps on the lower level, and N of them unrolled so that the upper gradient flows through (BiSM Eq. 12-14).

`step(phi, opt_state, context) -> (phi, opt_state)` is one pure lower step. `context` contains every other tensor it
reads (features, noisy batch, noise, theta), because memory mode `recompute` saves only a step's arguments.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from eblvm.engine.autodiff.derivatives import inside_torch_func, vjp
from eblvm.engine.types import Params

Moments = Any  # an optimiser's state, a tree of tensors
LowerStep = Callable[[Params, Moments, Any], tuple[Params, Moments]]


def unroll(step: LowerStep, phi: Params, opt_state: Moments, contexts: Sequence[Any], memory: str) -> Params:
    """Return phi_N after one step per context. `store` keeps the graph of each step, `recompute` only its inputs. In a
    compiled step (--compile) the compiler chooses what to keep."""
    for context in contexts:
        if memory == "recompute":
            phi, opt_state = _recomputed(step, phi, opt_state, context)
        else:
            phi, opt_state = step(phi, opt_state, context)
    return phi


def _recomputed(step: LowerStep, *inputs: Any) -> tuple[Params, Moments]:
    leaves, spec = tree_flatten(inputs)

    def flat_step(flat: list[Tensor]) -> list[Tensor]:
        return tree_flatten(step(*tree_unflatten(flat, spec)))[0]

    outputs = _Recomputed.apply(flat_step, *leaves)
    _, out_spec = tree_flatten(inputs[:2])  # a step returns the structure of its arguments: (phi, opt_state)
    return tree_unflatten(list(outputs), out_spec)


class _Recomputed(torch.autograd.Function):
    """A lower step that saves its inputs and rebuilds its own second-order graph inside backward, step by step."""

    generate_vmap_rule = True

    @staticmethod
    def forward(flat_step: Callable[[list[Tensor]], list[Tensor]], *leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat_step(list(leaves)))

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
