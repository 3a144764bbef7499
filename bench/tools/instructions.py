"""Instructions of a training step: a figure that load on the machine does not change.

By the processor's counter where the kernel gives it (`perf_event_open`), which virtual machines often do not; otherwise
`eblvm bench compare --instructions callgrind` counts them under valgrind. There numerical libraries see a processor
without AVX-512 and may run other code, the same for base and head.
"""

import contextlib
import ctypes
import gc
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

Step = Callable[[], None]
CALLS = {"x86_64": 298, "aarch64": 241}  # the number of perf_event_open
HARDWARE, INSTRUCTIONS = 0, 1
USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv
STEPS = 5


@contextlib.contextmanager
def counter() -> Iterator[Callable[[], int] | None]:
    """A function that reads the number of instructions this thread has run; None where the machine does not count
    them."""
    number = CALLS.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        yield None
        return
    attributes = struct.pack("=IIQQQQQ", HARDWARE, 112, INSTRUCTIONS, 0, 0, 0, USER_ONLY).ljust(112, b"\0")
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0)
    if descriptor < 0:
        yield None
        return
    try:
        yield lambda: struct.unpack("=Q", os.read(descriptor, 8))[0]
    finally:
        os.close(descriptor)


def counted() -> bool:
    with counter() as read:
        return read is not None


def per_step(step: Step) -> int | None:
    """The fewest instructions of one call in STEPS, after a first call; None where they are not counted."""
    with counter() as read:
        if read is None:
            return None
        counts = []
        gc.disable()
        try:
            for _ in range(STEPS):
                before = read()
                step()
                counts.append(read() - before)
        finally:
            gc.enable()
        return min(counts)


def callgrind(command: list[str], folder: Path) -> list[str]:
    """`command` under valgrind, which counts only after `control(..., "-i", "on")`; counts are dumped to `folder`."""
    options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/count"]
    return ["valgrind", *options, *command]


def has_callgrind() -> bool:
    return shutil.which("valgrind") is not None and shutil.which("callgrind_control") is not None


def control(pid: int, *words: str) -> None:
    subprocess.run(["callgrind_control", *words, str(pid)], check=True, capture_output=True)


def callgrind_per_step(take_steps: Callable[[int], None], pid: int, folder: Path) -> float:
    """The mean count of STEPS steps, which `take_steps(count)` makes the process run."""
    control(pid, "-z")
    take_steps(STEPS)
    control(pid, "-d")
    newest = max(folder.glob("count.*"), key=lambda path: int(path.suffix[1:]))
    total = next(line for line in newest.read_text().splitlines() if line.startswith("totals:"))
    newest.unlink()
    return int(total.split()[1]) / STEPS
