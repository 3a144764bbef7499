"""Deterministic costs of a step: bytes saved for backward, peak bytes, FLOPs, operator calls."""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from eblvm.kernels import grbm_bilevel
from eblvm.kernels.grbm_bilevel import reference

NATIVE_STEP = torch.ops.eblvm.grbm_bilevel if grbm_bilevel.native() else None


class Footprint(NamedTuple):
    saved_bytes: int | None  # most bytes held for a backward pass at once; None where no hook can see them (vmap)
    peak_bytes: int  # most bytes alive at once, both beyond the step's inputs
    flops: int  # of matrix products and convolutions
    ops: int  # operator calls that compute something, views left out


class Storages:
    """Storages alive at once, each counted once: the present and the highest number of bytes."""

    def __init__(self, known: Iterable[Tensor]):
        self.live = self.peak = 0
        self.holders: dict[int, int] = {}
        self._known = list(known)  # kept alive, so that none of their addresses is given to another storage
        self._excluded = {t.untyped_storage()._cdata for t in self._known}

    def add(self, key: int, nbytes: int) -> None:
        if key in self._excluded:
            return
        self.holders[key] = self.holders.get(key, 0) + 1
        if self.holders[key] == 1:
            self.live += nbytes
            self.peak = max(self.peak, self.live)

    def remove(self, key: int, nbytes: int) -> None:
        if key in self._excluded:
            return
        self.holders[key] -= 1
        if not self.holders[key]:
            del self.holders[key]
            self.live -= nbytes


class Saved:
    """A tensor that a graph holds for its backward pass. Detached: an output that its own node held would never die."""

    def __init__(self, storages: Storages, tensor: Tensor):
        self.tensor = tensor.detach()
        storage = tensor.untyped_storage()
        self._storages, self._entry = storages, (storage._cdata, storage.nbytes())
        storages.add(*self._entry)

    def __del__(self) -> None:
        self._storages.remove(*self._entry)


class Operators(TorchDispatchMode):
    """Counts operator calls and FLOPs, and follows every storage from its first appearance to its end.

    What an operator allocates inside itself no mode sees: `grbm_bilevel` says what it used, and what of it was tape; a
    convolution copies arguments that are not contiguous, and once more into the order of the library that it calls."""

    def __init__(self, storages: Storages):
        super().__init__()
        self.storages, self.flops, self.ops, self.tape = storages, 0, 0, 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.ops += not func.is_view
        if (count_flops := flop_registry.get(func._overloadpacket)) is not None:
            self.flops += count_flops(*args, **(kwargs or {}), out_val=out)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._follow(tensor.untyped_storage())
        if func._overloadpacket is NATIVE_STEP:
            scratch, tape = grbm_bilevel.memory()
            self._scratch(scratch)
            self.tape = max(self.tape, tape)
        if func._overloadpacket is torch.ops.aten.convolution:
            self._scratch(2 * sum(t.nbytes for t in args[:2] if not _packed(t)))
        return out

    def _scratch(self, nbytes: int) -> None:
        self.storages.peak = max(self.storages.peak, self.storages.live + nbytes)

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            del self._alive[key]
            self.storages.remove(key, nbytes)

        self._alive[key] = weakref.ref(storage, gone)
        self.storages.add(key, nbytes)


def _packed(t: Tensor) -> bool:
    return t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))


@contextmanager
def saved_by_graphs(known: Iterable[Tensor]) -> Iterator[Storages]:
    """Collect what graphs made inside hold for their backward passes, beyond tensors that are known."""
    saved = Storages(known)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(saved, t), lambda s: s.tensor):
        yield saved


def held_bytes(build: Callable[[], Any], known: Iterable[Tensor]) -> int:
    """Bytes that the graphs of `build`'s result hold for its backward pass, beyond tensors that are known."""
    with saved_by_graphs(known) as saved:
        result = build()
    held = saved.live
    del result
    return held


def footprint(step: Callable[[], None], inputs: Callable[[], list[Tensor]], hooks: bool = True) -> Footprint:
    """The footprint of one call of `step`, which has run before (a first call may fill caches). `inputs()` gives the
    tensors that exist before it; `hooks=False` where saved-tensor hooks cannot be used."""
    gc.collect()
    saved_bytes = None
    if hooks:
        with saved_by_graphs(inputs()) as saved:
            step()
        saved_bytes = saved.peak
    reference.tape_bytes = 0
    with Operators(Storages(inputs())) as operators:
        step()
    if saved_bytes is not None:
        saved_bytes += operators.tape + reference.tape_bytes  # of the fused step that ran, if one did
    return Footprint(saved_bytes, operators.storages.peak, operators.flops, operators.ops)
