"""The machine that a run is on: its GPU, the precision and determinism of its arithmetic, its memory and its signals.

'cuda' is resolved once to the process's own GPU, which each of its threads has to select. What an operating system does
not have, as Windows lacks several things here, is left out or answered by a default.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from eblvm.engine.errors import UserError

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

SUBNORMAL = 1e-40
WARNINGS = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name))  # a scheduler's
ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)) + WARNINGS
UNKNOWN_MEMORY = 8 * 2**30  # assumed if the machine does not report its memory


def own_device(device: str) -> str:
    """Return `device` with its number and make it this thread's current one; 'cuda' is the GPU of torchrun's local
    rank, or the current one. A device that is not there is an error."""
    if torch.device(device).type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise UserError(f"got device {device!r}, but torch sees no CUDA device here; use --device cpu")
    index: int | None = torch.device(device).index
    count = torch.cuda.device_count()
    local, processes = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if processes > count:
        raise UserError(
            f"got {processes} processes on a machine with {count} GPUs, expected one per GPU; give torchrun a smaller "
            "--nproc-per-node"
        )
    if index is None:
        index = local if "LOCAL_RANK" in os.environ else torch.cuda.current_device()
    elif processes > 1:
        raise UserError(
            f"got device={device!r} for {processes} processes, expected each with a GPU of its own; use cuda"
        )
    if index >= count:
        raise UserError(f"got device={device!r} on a machine with {count} GPUs, expected cuda:0 to cuda:{count - 1}")
    torch.cuda.set_device(index)
    return f"cuda:{index}"


def start_thread(threads: int, device: torch.device) -> None:
    """Set up a new thread: torch keeps a current GPU per thread, GPU 0 until the thread selects one."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)


def set_repeatable(deterministic: bool) -> None:
    """Switch --deterministic: the same bits from run to run on a GPU. Without it cuDNN may use the fastest algorithm,
    and sums of atomic adds may differ in their last bits."""
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(deterministic)


def set_products(precision: str) -> None:
    """Let CUDA round the factors of fp32 products to tf32, or forbid it: torch's default allows it for convolutions."""
    kind = "tf32" if precision == "tf32" else "ieee"
    _round_products(matmul=kind, conv=kind, rnn=kind)


@contextmanager
def full_products() -> Iterator[None]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    before = cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision  # type: ignore[attr-defined]
    set_products("fp32")
    try:
        yield
    finally:
        _round_products(*before)


def _round_products(matmul: str, conv: str, rnn: str) -> None:
    """Set each precision by both of its names: setting the newer one leaves the older one as it is, and torch raises
    where other code then reads the older one or enters `cudnn.flags()`."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    cuda.matmul.allow_tf32, cudnn.allow_tf32 = matmul == "tf32", conv == "tf32"
    cuda.matmul.fp32_precision = matmul
    cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = conv, rnn  # type: ignore[attr-defined]


@contextmanager
def subnormals_as_zero() -> Iterator[None]:
    """Replace numbers below 1.2e-38 by zero inside the block, as most of a GPU's arithmetic does.

    Late in a run the tails of q(h|v) are that small, and a CPU takes many times as long for each
    (docs/performance.md). The mode is this thread's, and that of the threads it starts."""
    before = float(torch.full((), SUBNORMAL) * 1) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def device_memory(device: str) -> int:
    """Return the free bytes of this process's GPU, or its part of the machine's memory."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(torch.device(device))[0]
    return physical_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def peak_memory_mib() -> float:
    """Return this process's peak use of the machine's memory; 0 if the system does not count it."""
    peak = 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def page_faults() -> int:
    """Return how many page faults this process has had since it started; 0 if the system does not count them."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_minflt


# glibc's numbers for mallopt, and the values that it reaches by itself: the number of mapped blocks,
# the largest block of its heap.
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4
MAPPED_BLOCKS, LARGEST_IN_HEAP = 65536, 32 * 2**20


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Inside the block, keep freed memory in this process for its next step; afterwards, return it to the system.

    glibc returns the end of its heap whenever that is free, and large blocks at once. Every page of them comes back
    by a page fault and is cleared; docs/performance.md has the cost per step. If the environment tunes the heap, or
    the C library is another, nothing changes."""
    tuned = any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    c = ctypes.CDLL(None) if sys.platform == "linux" and not tuned else None
    if c is None or not hasattr(c, "mallopt") or not hasattr(c, "malloc_trim"):
        yield
        return
    c.mallopt(MMAP_MAX, 0)
    c.mallopt(TRIM_THRESHOLD, -1)  # never
    try:
        yield
    finally:
        c.mallopt(MMAP_MAX, MAPPED_BLOCKS)
        c.mallopt(MMAP_THRESHOLD, LARGEST_IN_HEAP)
        c.mallopt(TRIM_THRESHOLD, 2 * LARGEST_IN_HEAP)
        c.malloc_trim(0)


def physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_MEMORY
