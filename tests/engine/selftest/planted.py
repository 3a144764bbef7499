"""Faults in the gradients of a training step: of theta, and of q's parameters phi, in plain and in fused steps."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from eblvm.engine.methods import fused_grbm
from eblvm.engine.methods.bidvl_levels import Levels
from eblvm.engine.optim.adam import Adam
from eblvm.engine.training import step as training_step

Patches = Callable[[float], list[Any]]


def scaled(tree: dict[str, Any], factor: float) -> dict[str, Any]:
    return {name: factor * g for name, g in tree.items()}


def in_theta(factor: float) -> list[Any]:
    """Return patches that multiply the gradient of theta."""
    moved, upper_gradient = training_step.moved, Levels.upper_gradient

    def with_fault(gradient: Any, *arguments: Any, **options: Any) -> Any:
        def faulty(*given: Any) -> Any:
            bars, state, info = gradient(*given)
            return scaled(bars, factor), state, info

        return moved(faulty, *arguments, **options)

    def upper(*given: Any) -> Any:
        gradient, *rest = upper_gradient(*given)
        return scaled(gradient, factor), *rest

    return [patch.object(training_step, "moved", with_fault), patch.object(Levels, "upper_gradient", upper)]


def in_phi(factor: float) -> list[Any]:
    """Return patches that multiply the gradient of phi: in its optimiser's steps, in what the fused steps return."""
    updated, unpacked, lower_gradient = Adam.updated, fused_grbm.unpacked, Levels.lower_gradient

    def lower(*given: Any) -> Any:
        gradient, *rest = lower_gradient(*given)
        return scaled(gradient, factor), *rest

    def returned(*given: Any) -> Any:
        state = unpacked(*given)
        moments = state.phi.moments._replace(m=scaled(state.phi.moments.m, factor))
        return state._replace(phi=state.phi._replace(moments=moments))

    return [
        patch.object(Adam, "updated", lambda self, w, gradient, lr: updated(self, w, scaled(gradient, factor), lr)),
        patch.object(fused_grbm, "unpacked", returned),
        patch.object(Levels, "lower_gradient", lower),
    ]


@contextmanager
def planted(patches: Patches, factor: float) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches(factor):
            stack.enter_context(one)
        yield
