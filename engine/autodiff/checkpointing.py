"""Second-order activation checkpointing: a module that keeps only its input through a score pass and its backward.

A score is grad_v of the energy, computed with a graph, and the loss is differentiated through that graph. Under
`torch.utils.checkpoint` the score pass recomputes the activations and its graph then keeps them all, so no memory is
saved. Here both passes are Functions: the first saves the input x; its derivative in the score pass, g -> J(x)^T g,
saves (x, g) and rebuilds the module's double backward inside itself, when the loss's backward reaches it. The gradient
of an unrolled step is such a pass too, and gives the parameters' gradients as well as that of x.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from eblvm.engine.autodiff.derivatives import inside_torch_func, visited

Context = Callable[[], AbstractContextManager[Any]]
ModuleCall = Callable[..., tuple[Tensor, ...]]  # (x, a module's tensors) -> (result, tensors without derivatives)


def checkpointed(module: nn.Module, x: Tensor, context: Context = nullcontext, seen: list[Tensor] | None = None) -> Any:
    """Return module(x), keeping only x for the derivatives; the module runs in `context()` each time. The module must
    be deterministic. With `seen` it is called with x and a list, and what it appends goes to `seen`."""
    if inside_torch_func():
        raise RuntimeError(
            "a checkpointed model runs in plain autograd only, and this is torch.func (replicas) or torch.compile; "
            "use --checkpoint none, and with --compile --memory-budget to save memory"
        )
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())

    def run(x: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        own: list[Tensor] = []
        arguments = (x,) if seen is None else (x, own)
        with context():
            return functional_call(module, dict(zip(tensors, values, strict=True)), arguments), *own

    y, *appended = _Segment.apply(run, x, *tensors.values())
    if seen is not None:
        seen += appended
    return y


class _Segment(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: ModuleCall, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.save_for_backward(*inputs)
        y, *appended = run(*inputs)
        ctx.mark_non_differentiable(*appended)
        return y, *appended

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        wanted = wanted_inputs(ctx, len(ctx.saved_tensors))
        if torch.is_grad_enabled():
            gradients = iter(_Pull.apply(ctx.run, wanted, g, *ctx.saved_tensors))
        else:
            gradients = iter(pulled(ctx.run, wanted, g, ctx.saved_tensors))
        return None, *(next(gradients) if w else None for w in wanted)


class _Pull(torch.autograd.Function):
    """J(x)^T g of a segment, for the wanted inputs; differentiable once, with respect to g and the inputs."""

    @staticmethod
    def forward(ctx: Any, run: ModuleCall, wanted: list[bool], g: Tensor, *inputs: Tensor) -> tuple[Tensor | None, ...]:
        ctx.run, ctx.wanted = run, wanted
        ctx.save_for_backward(g, *inputs)
        return pulled(run, wanted, g, inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a checkpointed model has no third derivative; use --checkpoint none")
        needed = ctx.needs_input_grad[2:]
        with torch.enable_grad():
            g, *inputs = leaves(ctx.saved_tensors, needed)
            inputs = [t.requires_grad_(t.requires_grad or w) for t, w in zip(inputs, ctx.wanted, strict=True)]
            results = pulled(ctx.run, ctx.wanted, g, inputs, graph=True)
            used = [(t, c) for t, c in zip(results, cotangents, strict=True) if t is not None and t.requires_grad]
            edges = [torch.autograd.graph.get_gradient_edge(t) for t, _ in used]
            along = [c for _, c in used]
            del results, used  # only their graph is needed: frees their values before the peak
            asked = [t for t, n in zip((g, *inputs), needed, strict=True) if n]
            gradients = iter(torch.autograd.grad(edges, asked, along, allow_unused=True))
        return None, None, *(next(gradients) if n else None for n in needed)


def pulled(
    run: ModuleCall, wanted: list[bool], g: Tensor, inputs: tuple[Tensor, ...] | list[Tensor], graph: bool = False
) -> tuple[Tensor | None, ...]:
    """Return the gradients of <g, run(inputs)> for the wanted inputs, None for unused ones; with `graph`,
    differentiable at the inputs."""
    with torch.enable_grad():
        at = inputs if graph else leaves(inputs, wanted)
        asked = [t for t, w in zip(at, wanted, strict=True) if w]
        return torch.autograd.grad(run(*at)[0], asked, g, create_graph=graph, allow_unused=True)


def leaves(tensors: tuple[Tensor, ...] | list[Tensor], wanted: Any) -> list[Tensor]:
    return [t.detach().requires_grad_(bool(w)) for t, w in zip(tensors, wanted, strict=True)]


def wanted_inputs(ctx: Any, number: int) -> list[bool]:
    """Return for which of a Function's last `number` arguments the running backward pass needs the gradient."""
    nodes = [node for node, _ in ctx.next_functions][-number:]
    needed = ctx.needs_input_grad[-number:]
    return [n and visited(node) for n, node in zip(needed, nodes, strict=True)]
