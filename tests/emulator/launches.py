"""A GPU for Triton that is none: launches go through Triton's own binder, specialisation and compiler for a compute
capability, on tensors of the CPU, and what was compiled is run by the emulator.

Memory of `torch.empty` is filled with ones, which is NaN in every floating type, and counts as unwritten until an
operator of torch or a launch writes it.
"""

import ctypes
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaDriver
from triton.runtime import driver
from triton.runtime.jit import _triton_jit_function_registry

from eblvm.kernels.runtime.triton_report import LIMITS
from tests.emulator.counters import Counts
from tests.emulator.formats import Array
from tests.emulator.machine import Launch, Machine
from tests.emulator.memory import Memory
from tests.emulator.parser import Program, UnknownPtxError, parse

BASE = 1 << 40  # the address of the emulated memory
ALIGNMENT, GAP = 512, 4096  # of a storage as CUDA's allocator has it; bytes between storages that belong to nobody
SIZES = {f"{kind}{bits}": max(bits // 8, 1) for kind in "iu" for bits in (1, 8, 16, 32, 64)} | {"fp32": 4, "fp64": 8}


class Launched(NamedTuple):
    """One launch: the kernel, what it was compiled to, and what running it did."""

    kernel: str
    capability: int
    grid: tuple[int, int, int]
    metadata: Any
    ptx: str
    counts: Counts
    problems: Counter[str]
    notes: Counter[str]


class Binary:
    """What a kernel was compiled to; decoded at its first launch."""

    def __init__(self, ptx: str) -> None:
        self.ptx, self.program = ptx, parse(ptx)
        self._machine: Machine | None = None

    def machine(self, warps: int, shared_bytes: int) -> Machine:
        if self._machine is None:
            self._machine = Machine(self.program, warps, shared_bytes)
        return self._machine


class Emulator(TorchDispatchMode):
    """In a `with` block launches of Triton kernels are compiled for `capability` and emulated, and listed."""

    def __init__(self, capability: int, *, checks: bool = True) -> None:
        super().__init__()
        self.capability, self.checks = capability, checks
        self.launches: list[Launched] = []
        self.loading = ""  # the PTX of the kernel that Triton loads
        self._unwritten: dict[int, Array] = {}  # by the address of a storage: a flag for each byte that has a value

    @property
    def problems(self) -> list[str]:
        return [f"{launched.kernel}: {words}" for launched in self.launches for words in launched.problems]

    def __enter__(self) -> "Emulator":
        self._driver = driver._active
        driver.set_active(Device(self))
        knobs.runtime.kernel_load_start_hook.add(self._remember)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        knobs.runtime.kernel_load_start_hook.remove(self._remember)
        driver._active = self._driver
        for function in _triton_jit_function_registry.values():  # megabytes each, decoded
            function.device_caches.pop(self.capability, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {address(t): t for t in tensors_of((args, kwargs or {}))}
        result = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            for place in before:
                self._unwritten.pop(place, None)
        new = {address(t): t for t in tensors_of(result)}
        for place, tensor in new.items():
            if place in before:
                continue
            self._unwritten.pop(place, None)
            if "empty" in func._schema.name and tensor.device.type == "cpu":
                size = tensor.untyped_storage().nbytes()
                ctypes.memset(place, 0xFF, size)
                self._unwritten[place] = np.zeros(size, bool)
        return result

    def _remember(self, module: Any, function: Any, name: str, files: dict[str, str], hash: str) -> None:
        (path,) = (path for file, path in files.items() if file.endswith(".ptx"))
        self.loading = Path(path).read_text()

    def launch(self, src: Any, metadata: Any, grid: tuple[int, int, int], binary: Binary, arguments: Sequence) -> None:
        """Run a kernel on the memory of its tensors."""
        program = binary.program
        if metadata.global_scratch_size or metadata.num_ctas != 1:
            raise UnknownPtxError("scratch memory and clusters of a launch")
        tensors = [a for a in tree_leaves(tuple(arguments)) if isinstance(a, Tensor) and a.numel()]
        arena = Arena(tensors)
        parameters = packed(program, src.signature, arguments, arena)
        launch = Launch(grid, parameters, arena.memory, BASE, warps=metadata.num_warps, checks=self.checks)
        shadow = None
        if self.checks:
            shadow = launch.shadowed(min(program.sizes_of_accesses("global") | {4}))
            for tensor in tensors:
                begin, size = arena.span(tensor)
                known = self._unwritten.get(address(tensor))
                offset = tensor.storage_offset() * tensor.element_size()
                written = np.ones(size, bool) if known is None else known[offset : offset + size]
                shadow.allow(begin, written)
        binary.machine(metadata.num_warps, metadata.shared).run(launch)
        arena.copy_back()
        if shadow is not None:
            for place in {address(t) for t in tensors} & self._unwritten.keys():
                begin, size = arena.storages[place]
                self._unwritten[place] |= shadow.written(begin, size)
        name = src.fn.__name__
        self.launches.append(
            Launched(name, self.capability, grid, metadata, binary.ptx, launch.counts, launch.problems, launch.notes)
        )


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_of(values: Any) -> Iterator[Tensor]:
    return (t for t in tree_leaves(values) if isinstance(t, Tensor) and t.numel())


class Arena:
    """One memory with the storages of all tensors of a launch."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.storages: dict[int, tuple[int, int]] = {}  # begin and size, by the address of the storage
        end = GAP
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.storages:
                self.storages[storage.data_ptr()] = end, storage.nbytes()
                end += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT + GAP
        self.memory = Memory(end)
        for place, (begin, size) in self.storages.items():
            self.memory.bytes[begin : begin + size] = host_bytes(place, size)

    def span(self, tensor: Tensor) -> tuple[int, int]:
        """Return where a tensor's first element is, and the bytes up to its last one."""
        begin, _ = self.storages[address(tensor)]
        steps = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        return begin + tensor.storage_offset() * tensor.element_size(), (steps + 1) * tensor.element_size()

    def copy_back(self) -> None:
        for place, (begin, size) in self.storages.items():
            host_bytes(place, size)[:] = self.memory.bytes[begin : begin + size]


def host_bytes(place: int, size: int) -> Array:
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(place))


def packed(program: Program, signature: dict[str, Any], arguments: Sequence[Any], arena: Arena) -> bytes:
    """Return the memory of the parameters: every argument that is no constant, then the two addresses of scratch."""
    places = list(program.parameters.values())
    memory = bytearray(max(place.offset + place.size for place in places))
    words = [bytes_of(kind, value, arena) for kind, value in flat(tuple(signature.values()), tuple(arguments))]
    assert len(words) <= len(places) <= len(words) + 2
    for place, word in zip(places, words, strict=False):
        assert len(word) == place.size, place
        memory[place.offset : place.offset + place.size] = word
    return bytes(memory)


def flat(kind: Any, value: Any) -> Iterator[tuple[str, Any]]:
    """Types and values of the arguments that a kernel gets, those in tuples too."""
    if isinstance(kind, tuple | list):
        for part, of_part in zip(kind, value, strict=True):
            yield from flat(part, of_part)
    elif kind != "constexpr":
        yield kind, value


def bytes_of(kind: str, value: Any, arena: Arena) -> bytes:
    if kind.startswith("*"):
        # A tensor without elements has no memory: an access is out of bounds.
        return (BASE + (arena.span(value)[0] if value.numel() else 0)).to_bytes(8, "little")
    if kind not in SIZES:
        raise UnknownPtxError(f"argument of type {kind}")
    if kind.startswith("fp"):
        return np.array(value, f"f{SIZES[kind]}").tobytes()
    return (int(value) & (1 << 8 * SIZES[kind]) - 1).to_bytes(SIZES[kind], "little")


class Device(CudaDriver):
    """What Triton asks a driver for; the device's number is its capability, by which Triton keeps compiled kernels."""

    def __init__(self, emulator: Emulator) -> None:
        capability = emulator.capability
        limits = LIMITS[capability]
        properties = {"max_shared_mem": limits.shared_kib_per_block * 1024, "multiprocessor_count": 108, "warpSize": 32}

        def load_binary(name: str, kernel: bytes, shared: int, device: int) -> tuple[Any, Binary, int, int, int]:
            return None, Binary(emulator.loading), 0, 0, 1024

        class Launcher:
            def __init__(self, src: Any, metadata: Any) -> None:
                self._src, self._metadata = src, metadata

            def __call__(self, x: int, y: int, z: int, stream: int, function: Binary, *rest: Any) -> None:
                active = driver.active
                assert isinstance(active, Device)
                active.emulator.launch(self._src, self._metadata, (x, y, z), function, rest[4:])

        self.emulator = emulator
        self.utils = SimpleNamespace(get_device_properties=lambda device: properties, load_binary=load_binary)
        self.launcher_cls = Launcher
        self.get_current_device = lambda: capability
        self.get_current_stream = lambda device: 0
        self.get_device_capability = lambda device: divmod(capability, 10)

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.emulator.capability, 32)
