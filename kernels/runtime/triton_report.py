"""Costs of the Triton kernels on each architecture, compiled without a GPU by the path of a launch.

`rows()` is the table of `eblvm doctor --kernels`: registers, spills, shared memory and theoretical occupancy.
"""

import contextlib
import io
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

# The ops with a triton.py; each has `variants()`.
OPS = (
    "philox", "bernoulli_lower", "adam_unroll", "grbm_bilevel", "gibbs", "elu_second_order", "elu_of_sum",
    "fisher_step", "grbm", "grbm_dsm", "sliced_hvp",
)  # fmt: skip
CAPABILITIES = (75, 80, 86, 90, 100)


class Variant(NamedTuple):
    """One kernel as an op launches it: arguments, constexprs, and the options that change its code."""

    name: str
    kernel: Any  # a triton JITFunction
    arguments: dict[str, Any]  # of a pointer its type (*fp32), or a tuple of them; else a value
    constants: dict[str, Any]
    warps: int = 4
    fp_fusion: bool = True
    capabilities: tuple[int, ...] = CAPABILITIES  # that it is launched on
    fused: bool = False  # with a product inside: seconds to compile
    registers: int | None = None  # of a thread, the most; None leaves it to ptxas


class Row(NamedTuple):
    kernel: str
    capability: int
    registers: int  # a thread
    spill_bytes: int
    shared_bytes: int  # a block
    occupancy: float  # resident warps over the most of a multiprocessor
    vector_loads: float  # fraction of the bytes that a thread loads in loads of 8 bytes or more


class Limits(NamedTuple):
    """Of one multiprocessor: CUDA C++ programming guide, "technical specifications per compute capability"."""

    warps: int
    blocks: int
    shared_kib: int
    shared_kib_per_block: int


LIMITS = {
    75: Limits(32, 16, 64, 64),
    80: Limits(64, 32, 164, 163),
    86: Limits(48, 16, 100, 99),
    89: Limits(48, 24, 100, 99),
    90: Limits(64, 32, 228, 227),
    100: Limits(64, 32, 228, 227),
}
TORCH_TYPES = {
    "*fp64": "float64", "*fp32": "float32", "*bf16": "bfloat16", "*fp16": "float16", "*i64": "int64", "*i32": "int32",
    "*i1": "bool",
}  # fmt: skip
REGISTERS, REGISTER_UNIT = 65_536, 256  # of a multiprocessor; handed out to a warp in units


def compiled(variant: Variant, capability: int) -> Row:
    """Compiles for `capability` and reads from ptxas what the code uses."""
    from triton import knobs

    said = io.StringIO()
    with knobs.nvidia.scope(), contextlib.redirect_stdout(said):
        knobs.nvidia.dump_ptxas_log = True
        kernel = built(variant, capability)
    # A kernel from triton's cache has no log.
    log = said.getvalue() or ptxas_log(kernel.asm["ptx"], capability, variant.fp_fusion)
    registers = int(_matched(r"Used (\d+) registers", log))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))
    shared = int(kernel.metadata.shared)
    filled = occupancy(capability, registers, shared, variant.warps)
    return Row(variant.name, capability, registers, spills, shared, filled, vector_loads(kernel.asm["ptx"]))


def built(variant: Variant, capability: int) -> Any:
    """Triton's compiled kernel, by the path of a launch."""
    arguments = {name: absent(value) for name, value in variant.arguments.items()} | variant.constants
    options = {"num_warps": variant.warps, "enable_fp_fusion": variant.fp_fusion, "maxnreg": variant.registers}
    with target(capability):
        return variant.kernel.run(**arguments, **options, grid=(1,), warmup=True)


def absent(value: Any) -> Any:
    """A tensor of a pointer's type that is nowhere; it begins at a multiple of 16 bytes, as torch's do."""
    from triton.runtime.jit import MockTensor

    if isinstance(value, tuple):
        return tuple(absent(v) for v in value)
    return MockTensor(getattr(torch, TORCH_TYPES[value])) if isinstance(value, str) else value


@contextlib.contextmanager
def target(capability: int) -> Iterator[None]:
    """Kernels are bound and compiled as on a GPU of `capability`; none can run."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    class Absent(CudaDriver):
        def __init__(self) -> None:
            # Of the GPU's number: the JIT keeps what it compiled by the number of the device.
            self.get_current_device, self.get_current_stream = lambda: capability, lambda device: 0

        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", capability, 32)

    before = driver._active
    driver.set_active(Absent())
    try:
        yield
    finally:
        driver._active = before


def ptxas_log(ptx: str, capability: int, fp_fusion: bool) -> str:
    """The log of ptxas, called as triton calls it."""
    from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", *([] if fp_fusion else ["--fmad=false"]), "--regAllocOptLevel=2"]
        command += [f"--gpu-name={sm_arch_from_capability(capability)}", str(source), "-o", f"{folder}/kernel.cubin"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stderr


def vector_loads(ptx: str) -> float:
    """Over the global loads and asynchronous copies of the code, each counted once."""
    sizes = [
        int(count or 1) * int(bits) // 8
        for count, bits in re.findall(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", ptx)
    ]
    sizes += [int(size) for size in re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*?, 0x([0-9a-f]+)", ptx)]
    return sum(n for n in sizes if n >= 8) / max(sum(sizes), 1)


def occupancy(capability: int, registers: int, shared_bytes: int, warps: int) -> float:
    """Resident warps over the most possible, from registers, shared memory and the number of blocks."""
    limits = LIMITS[capability]
    per_warp = -(-registers * 32 // REGISTER_UNIT) * REGISTER_UNIT
    blocks = min(limits.blocks, limits.warps // warps, REGISTERS // per_warp // warps)
    if shared_bytes:
        blocks = min(blocks, limits.shared_kib * 1024 // (shared_bytes + 1024))
    return blocks * warps / limits.warps


def variants() -> list[Variant]:
    return [v for op in OPS for v in import_module(f"eblvm.kernels.{op}.triton").variants()]


def rows(capabilities: Sequence[int] = CAPABILITIES) -> list[Row]:
    """Every kernel on every architecture; some seconds the first time, then from triton's cache."""
    return [compiled(v, capability) for v in variants() for capability in v.capabilities if capability in capabilities]


def table(rows: Sequence[Row]) -> str:
    head = f"{'kernel':34} {'cc':>4} {'registers':>9} {'spills':>6} {'shared':>7} {'occupancy':>9} {'vector loads':>12}"
    body = [
        f"{r.kernel:34} {r.capability:4} {r.registers:9} {r.spill_bytes:6} {r.shared_bytes:7} {r.occupancy:9.0%}"
        f" {r.vector_loads:12.0%}"
        for r in rows
    ]
    return "\n".join([head, *body])


def _matched(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"ptxas reported nothing like {pattern!r}; its output was: {text}")
    return match[1]
