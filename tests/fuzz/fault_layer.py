"""A file layer that fails at a chosen call: the process crashes there, or the disk returns an error.

Durable code calls the system through `os` and file objects' `write`, `flush` and `close`. A crash is a BaseException at
the n-th such call, before it or (a torn write) in its middle; nothing after it happens, since every later call crashes
too, clean-up included.
"""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CALLS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "close", "ftruncate")


class Crash(BaseException):
    """Raised where the process is killed, or the power fails."""


class Faults:
    """A counter of calls; call number `at` crashes, or fails with the OSError number `code`."""

    def __init__(self, at: int | None = None, code: int | None = None):
        self.at, self.code, self.count, self.dead = at, code, 0, False

    def call(self, tear: Callable[[], object] | None = None) -> None:
        if self.dead:
            raise Crash
        number, self.count = self.count, self.count + 1
        if number != self.at:
            return
        if tear is not None:
            tear()
        if self.code is not None:
            raise OSError(self.code, os.strerror(self.code))
        self.dead = True
        raise Crash


class Writing(io.RawIOBase):
    """A file whose writes are counted; a write that crashes is torn in the middle."""

    def __init__(self, handle: int, faults: Faults):
        self.handle, self.faults = handle, faults

    def write(self, content: Any, /) -> int:
        content = bytes(content)
        self.faults.call(lambda: REAL["write"](self.handle, content[: len(content) // 2]))
        return REAL["write"](self.handle, content)

    def fileno(self) -> int:
        return self.handle

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            REAL["close"](self.handle)
        super().close()


REAL = {name: getattr(os, name) for name in (*CALLS, "fdopen")}


@contextmanager
def failing(faults: Faults) -> Iterator[Faults]:
    """Put `faults` between this process and its files."""

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if name != "close":  # of a handle that a dead process would lose anyway
                faults.call()
            return REAL[name](*arguments, **named)

        return call

    def fdopen(handle: int, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if "b" in mode and "w" in mode:
            return Writing(handle, faults)
        if "a" in mode:
            return io.TextIOWrapper(io.BufferedWriter(Writing(handle, faults)), encoding="utf-8")
        return REAL["fdopen"](handle, mode, *rest, **named)

    replaced = {name: wrapped(name) for name in CALLS if name != "write"} | {"fdopen": fdopen}
    before = {name: getattr(os, name) for name in replaced}
    for name, function in replaced.items():
        setattr(os, name, function)
    try:
        yield faults
    finally:
        for name, function in before.items():
            setattr(os, name, function)
