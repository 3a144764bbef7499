"""Partial derivatives that keep everything but their argument fixed, in torch's two dialects.

In a bi-level step many quantities depend on each other through the unroll: phi_N depends on the features f and so on v,
yet grad_v of the surrogate score must keep phi_N fixed. Both functions here differentiate only with respect to their
argument, at a fresh alias of it, and their results stay differentiable with respect to everything else the closure
reads, unless grad mode is off.

Plain autograd is the default: the faster dialect in eager mode and the only one in which saved-tensor hooks can count
memory. Inside `torch.func` transforms and `torch.compile` only `torch.func` works.

`named` names the parts of a step for a profiler. Names cost nothing until they are switched on, by `eblvm profile
--trace`, or by EBLVM_NVTX=1 for NVIDIA's tools, as in `EBLVM_NVTX=1 nsys profile eblvm train ...`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Finish = Callable[[int, Tensor], Tensor]  # (number of a leaf, its gradient) -> what is returned instead of the gradient
NVTX = os.environ.get("EBLVM_NVTX", "0") == "1"
_NONE = nullcontext()
_on = NVTX


def inside_torch_func() -> bool:
    return torch.compiler.is_compiling() or torch._C._functorch.maybe_current_level() is not None


def forward_mode() -> bool:
    """Return whether a level of forward-mode differentiation is active."""
    return torch.autograd.forward_ad._current_level >= 0


def visited(node: Any) -> bool:
    """Return whether the running backward pass will visit this node of the graph."""
    if node is None:
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # raised for a leaf that is one of the inputs of the running autograd.grad
        return True


def _alias(x: Tensor) -> Tensor:
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def grad(
    fn: Callable[[Any], tuple[Tensor, Any]], x: Any, scale: Tensor | None = None, finish: Finish | None = None
) -> tuple[Any, Any]:
    """Return (d fn(x)[0] / dx, fn(x)[1]) for a scalar first output and any pytree x; zeros for leaves that fn ignores.
    With `scale` the backward pass is multiplied by it, and its result divided by it (mixed_precision.py). `finish` gets
    the gradient of each leaf of x as soon as it is complete, while backward continues with the others."""
    if scale is None:
        return _grad(fn, x, finish)

    def scaled(y: Any) -> tuple[Tensor, Any]:
        value, aux = fn(y)
        return value * scale, aux

    if finish is not None:
        return _grad(scaled, x, lambda i, g: finish(i, g / scale))
    gradient, aux = _grad(scaled, x, None)
    return tree_map(lambda g: g / scale, gradient), aux


def _grad(fn: Callable[[Any], tuple[Tensor, Any]], x: Any, finish: Finish | None) -> tuple[Any, Any]:
    if inside_torch_func():
        gradient, aux = torch.func.grad(fn, has_aux=True)(x)
        return _finished(gradient, finish), aux
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        alias = tree_map(_alias, x)
        value, aux = fn(alias)
    leaves, spec = tree_flatten(alias)
    gradients = _gradients([value], leaves, finish, create_graph=create_graph, materialize_grads=True)
    return tree_unflatten(gradients, spec), aux


def _gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor], finish: Finish | None, **how: Any) -> list[Tensor]:
    """Call `torch.autograd.grad`, with `finish` called during backward."""
    if finish is None:
        return list(torch.autograd.grad(outputs, leaves, **how))
    finished: set[int] = set()

    def complete(i: int, g: Tensor | None) -> Tensor | None:
        if g is None:  # reached without a gradient: becomes zeros
            return None
        finished.add(i)
        return finish(i, g)

    handles = [leaf.register_hook(partial(complete, i)) for i, leaf in enumerate(leaves)]
    try:
        gradients = torch.autograd.grad(outputs, leaves, **how)
    finally:
        for handle in handles:
            handle.remove()
    return [g if i in finished else finish(i, g) for i, g in enumerate(gradients)]


def _finished(tree: Any, finish: Finish | None) -> Any:
    if finish is None:
        return tree
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([finish(i, g) for i, g in enumerate(leaves)], spec)


def vjp(fn: Callable[[Any], Any], x: Any) -> tuple[Any, Callable[..., Any]]:
    """Return (y, pull) with y = fn(x) and pull(u) = u^T dy/dx, for pytrees x, y and u. For leaves of x that y does not
    depend on, pull(u) has zeros, and pull(u, materialize=False) may have None. In no-grad mode pull frees the graph,
    unless `keep` keeps it for another call. `finish` is that of `grad`."""
    if inside_torch_func():
        y, pull_func, *_ = torch.func.vjp(fn, x)
        return y, lambda u, materialize=True, keep=False, finish=None: _finished(pull_func(u)[0], finish)
    with torch.enable_grad():
        alias = tree_map(_alias, x)
        y = fn(alias)

    def pull(u: Any, materialize: bool = True, keep: bool = False, finish: Finish | None = None) -> Any:
        leaves, spec = tree_flatten(alias)
        pairs = zip(tree_flatten(y)[0], tree_flatten(u)[0], strict=True)
        tracked = [(out, cotangent) for out, cotangent in pairs if out.requires_grad]
        gradients = _gradients(
            [out for out, _ in tracked],
            leaves,
            finish,
            grad_outputs=[cotangent for _, cotangent in tracked],
            create_graph=torch.is_grad_enabled(),
            retain_graph=keep or torch.is_grad_enabled(),
            allow_unused=True,
            materialize_grads=materialize,
        )
        return tree_unflatten(gradients, spec)

    return y, pull


def score_and_curvature(
    log_density: Callable[[Tensor], Tensor], v: Tensor, directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return s = grad_v log p [B, ...] and u^T (grad_v^2 log p) u [M, B] for directions u [M, B, ...]. All directions
    use one score and its graph; `vmap` multiplies them at once by its transposed Jacobian, which is the Hessian. A
    single direction needs no vmap."""
    score, hessian = vjp(lambda x: grad(lambda y: (log_density(y).sum(), ()), x)[0], v)
    along = hessian(directions[0])[None] if len(directions) == 1 else torch.vmap(hessian)(directions)
    return score, (along * directions).flatten(2).sum(2)


def detached(tree: Any) -> Any:
    """Return the same tensors without their graph."""
    return tree_map(Tensor.detach, tree)


def named(part: str) -> AbstractContextManager[Any]:
    """Name a part of a step."""
    return _range(part) if _on else _NONE


@contextmanager
def switched_on() -> Iterator[None]:
    """Show the names inside the block to torch's profiler, which writes them to its traces."""
    global _on
    before, _on = _on, True
    try:
        yield
    finally:
        _on = before


@contextmanager
def _range(part: str) -> Iterator[None]:
    with torch.profiler.record_function(f"eblvm: {part}"):
        if NVTX and torch.cuda.is_available():
            with torch.cuda.nvtx.range(part):
                yield
        else:
            yield
