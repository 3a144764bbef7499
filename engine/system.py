"""System calls that not every operating system has: Windows has none of them, macOS some."""

import ctypes
import errno
import importlib
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl, resource = _module("fcntl"), _module("resource")

# Flags for os.open: follow no link, do not pass to child processes, do not translate bytes.
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
FOLDER: int | None = getattr(os, "O_DIRECTORY", None)  # None: folders cannot be opened, so they cannot be synchronised
ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
CLOSED_PIPE = 128 + getattr(signal, "SIGPIPE", 13)  # the exit code of a program whose reader has closed the pipe
UNKNOWN_MEMORY = 8 * 2**30  # assumed if the machine does not report its memory


def flock(file: int, *, exclusive: bool, wait: bool) -> None:
    """Lock an open file, or raise OSError: EAGAIN if another process has it, ENOSYS if the system has no such locks."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this system has no file locks")
    fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))


def peak_memory_mib() -> float:
    """Return this process's peak use of the machine's memory; 0 if the system does not count it."""
    if resource is None:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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
    the C library is another, nothing changes.
    """
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
    """Return the bytes of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_MEMORY
