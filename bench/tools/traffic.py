"""Launches and bytes of memory traffic of code on a GPU, counted without one: in triton's interpreter.

Every launch is watched at the addresses that its own tiles load and store. They depend on no value, so none is loaded,
stored or multiplied, and the results are meaningless. `bytes` counts an address once per launch, as a cache does that
is large enough for the launch's tensors. An operator of torch is a launch that reads its inputs and writes its output
once.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = frozenset(
    "view _unsafe_view detach alias t transpose expand unsqueeze squeeze select slice permute as_strided empty "
    "empty_like empty_strided new_empty split unbind unflatten flatten movedim".split()
)


class Traffic(NamedTuple):
    launches: int
    bytes: int


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name.split("::")[1] not in VIEWS:
            self.launches += 1
            self.bytes += sum(t.nbytes for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor))
        return out


def count(run: Callable[[], object]) -> Traffic:
    """Count one call of `run`, on CPU tensors under TRITON_INTERPRET=1."""
    kernels = _Kernels()
    with kernels.watched(), _Operators() as operators:
        run()
    return Traffic(kernels.launches + operators.launches, kernels.bytes + operators.bytes)


class _Kernels:
    def __init__(self) -> None:
        self.launches, self.bytes = 0, 0
        self.touched: dict[str, dict[int, list[np.ndarray]]] = {}
        self.seen: dict[str, set[tuple[int, ...]]] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        from triton.runtime.interpreter import GridExecutor, InterpreterBuilder, TensorHandle, _get_np_dtype

        names = ("create_masked_load", "create_masked_store", "create_dot")
        plain = GridExecutor.__call__, {name: getattr(InterpreterBuilder, name) for name in names}

        def launch(executor: Any, *args: Any, **kwargs: Any) -> Any:
            self.touched, self.seen = {"loaded": {}, "stored": {}}, {"loaded": set(), "stored": set()}
            # The interpreter copies what it is given; that is no work of the kernel.
            with torch.utils._python_dispatch._disable_current_modes():
                out = plain[0](executor, *args, **kwargs)
            self.launches += 1
            for kinds in self.touched.values():
                for size, addresses in kinds.items():
                    self.bytes += size * len(np.unique(np.concatenate(addresses)))
            return out

        def load(builder: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
            self._touch("loaded", ptrs, mask)
            kind = ptrs.get_element_ty()
            return TensorHandle(np.ones(ptrs.data.shape, dtype=_get_np_dtype(kind)), kind)

        def store(builder: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> None:
            self._touch("stored", ptrs, mask)

        def dot(builder: Any, a: Any, b: Any, total: Any, *rest: Any) -> Any:
            return total

        GridExecutor.__call__ = launch
        for name, stand_in in zip(names, (load, store, dot), strict=True):
            setattr(InterpreterBuilder, name, stand_in)
        try:
            yield
        finally:
            GridExecutor.__call__ = plain[0]
            for name, own in plain[1].items():
                setattr(InterpreterBuilder, name, own)

    def _touch(self, kind: str, ptrs: Any, mask: Any) -> None:
        size = ptrs.get_element_ty().primitive_bitwidth // 8
        corners = (int(ptrs.data.flat[0]), int(ptrs.data.flat[-1]), int(np.count_nonzero(mask.data)), size)
        if corners not in self.seen[kind]:  # a tile of the same corners and as many addresses is the same tile
            self.seen[kind].add(corners)
            self.touched[kind].setdefault(size, []).append(ptrs.data[mask.data])
