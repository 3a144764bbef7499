"""What not every operating system has, in one place: Windows lacks all of it, macOS some."""

import errno
import importlib
import os
import signal
import sys
from typing import Any


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl, resource = _module("fcntl"), _module("resource")

# Flags for os.open: neither through a link nor into a child process, and bytes as they are.
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
FOLDER: int | None = getattr(os, "O_DIRECTORY", None)  # none: folders cannot be opened, and not be synchronised
ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
CLOSED_PIPE = 128 + getattr(signal, "SIGPIPE", 13)  # the exit code of a program whose reader has gone
UNKNOWN_MEMORY = 8 * 2**30  # what a machine is taken to have where it does not say


def flock(file: int, *, exclusive: bool, wait: bool) -> None:
    """Lock an open file, or raise OSError: EAGAIN if another process has it, ENOSYS where there are no such locks."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this system has no locks of files")
    fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))


def peak_memory_mib() -> float:
    """The most that this process took of the machine's memory; 0 where the system does not count it."""
    if resource is None:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def physical_memory() -> int:
    """Bytes of the machine's memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return UNKNOWN_MEMORY
