"""Second-order activation checkpointing: a module that keeps only its input through a score pass and its backward.

A score is grad_v of the energy, taken with a graph, and the loss is differentiated through that graph. Under
`torch.utils.checkpoint` the score pass recomputes the activations and its graph then holds them all, so nothing is
saved. Here both passes are Functions: the first saves the input x; its derivative in the score pass, g -> J(x)^T g,
saves (x, g) and rebuilds the module's double backward inside itself, when the loss's backward reaches it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from eblvm.engine.autodiff.derivatives import inside_torch_func, visited

Context = Callable[[], AbstractContextManager[Any]]


def checkpointed(module: nn.Module, x: Tensor, context: Context = nullcontext) -> Tensor:
    """module(x) with x alone kept for the derivatives, run in `context()` each time.

    The module must be deterministic. In a pass with `create_graph=True` only x has a gradient (the score's own need);
    asking there for those of the parameters raises.
    """
    if inside_torch_func():
        raise RuntimeError(
            "a checkpointed model runs in plain autograd only, and this is torch.func (replicas) or torch.compile; "
            "use --checkpoint none, and with --compile --unroll-memory compiled to save memory"
        )
    parameters = dict(module.named_parameters())

    def run(x: Tensor, *values: Tensor) -> Tensor:
        with context():
            return functional_call(module, dict(zip(parameters, values, strict=True)), (x,))

    return _Segment.apply(run, x, *parameters.values())


class _Segment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        return run(x, *parameters)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            if any(visited(node) for node, _ in ctx.next_functions[1:]):
                raise RuntimeError(
                    "a checkpointed model gives its parameters no gradient in a pass with create_graph=True; "
                    "differentiate that pass's result instead, or use --checkpoint none"
                )
            return None, _Pull.apply(ctx.run, g, *ctx.saved_tensors), *[None] * (len(ctx.saved_tensors) - 1)
        needed = ctx.needs_input_grad[1:]
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_(n) for t, n in zip(ctx.saved_tensors, needed, strict=True)]
            found = iter(torch.autograd.grad(ctx.run(*leaves), [t for t in leaves if t.requires_grad], g))
        return None, *(next(found) if n else None for n in needed)


class _Pull(torch.autograd.Function):
    """J(x)^T g of a segment; its derivatives with respect to g, x and the parameters, once."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], g: Tensor, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(g, x, *parameters)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(run(leaf, *(p.detach() for p in parameters)), leaf, g)[0]

    @staticmethod
    def backward(ctx: Any, t: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a checkpointed model has no third derivative; use --checkpoint none")
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            g, x, *parameters = leaves
            (pulled,) = torch.autograd.grad(ctx.run(x, *parameters), x, g, create_graph=True)
            edge = torch.autograd.graph.get_gradient_edge(pulled)
            del pulled  # its graph is wanted, not its value: one tensor less at the peak
            return None, *torch.autograd.grad(edge, leaves, t, allow_unused=True)
