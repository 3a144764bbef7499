"""Many draws in one launch on a GPU."""

import threading
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.philox.reference import Kind
from eblvm.kernels.runtime.dispatch import TRITON, triton_module

CURRENT = threading.local()  # `block`: another thread prepares minibatches meanwhile, with noise of its own


class together:  # noqa: N801
    """A block in which all draws of float32 noise on a GPU are one launch, at its end.

        with philox.together():
            eps, u = philox.normal(...), philox.uniform(...)  # views may be taken of them, but nothing computed

    Where Triton is not used, and for other dtypes, every draw is its own, at once."""

    def __init__(self) -> None:
        self._waiting: dict[Any, list[tuple[tuple[int, int, int, int], Tensor]]] = {}
        self._seeds: dict[Any, Tensor] = {}

    def __enter__(self) -> None:
        CURRENT.block = self

    def __exit__(self, error: type[BaseException] | None, *rest: Any) -> None:
        CURRENT.block = None
        if error is not None:
            return
        for (target, step, first), draws in self._waiting.items():
            seed, (of_draws, out) = self._seeds[target], zip(*draws, strict=True)
            triton_module("philox", seed.device).philox_list(seed, step, first, of_draws, out)

    def gathers(self, kind: Kind, seed: Tensor, dtype: torch.dtype) -> bool:
        """Is a draw for seeds on a GPU postponed to the launch of this block?"""
        plain = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
        return TRITON and dtype == torch.float32 and kind is not Kind.WORDS and plain

    def add(self, kind: int, seed: Tensor, step: int, purpose: int, count: int, width: int, first: int) -> Tensor:
        """Memory for a draw, filled at the end of the block."""
        out = torch.empty((*seed.shape, count, width), dtype=torch.float32, device=seed.device)
        self._seeds[id(seed)] = seed
        self._waiting.setdefault((id(seed), step, first), []).append(((kind, purpose, count, width), out))
        return out
