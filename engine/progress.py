"""Progress bars of long work, shown by the first process only."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm

QUIET = ContextVar("QUIET", default=False)


@contextmanager
def quietly() -> Iterator[None]:
    """Show no bars inside the block, because another one is running."""
    token = QUIET.set(True)
    try:
        yield
    finally:
        QUIET.reset(token)


def is_first() -> bool:
    """Return whether this process writes files and messages. torchrun numbers its processes from 0."""
    return int(os.environ.get("RANK", 0)) == 0


def progress(total: int, description: str, unit: str, start: int = 0) -> "tqdm[Any]":
    """Return a progress bar with rate and time left; in a log file, a line every ten seconds by the first process."""
    if "ipykernel" in sys.modules:
        from tqdm.auto import tqdm  # the bar of a notebook
    else:
        from tqdm import tqdm  # 25 ms, which an error in a command need not wait for

    return tqdm(
        total=total, initial=start, desc=description, unit=unit, mininterval=0.2 if sys.stderr.isatty() else 10.0,
        dynamic_ncols=True, disable=not is_first() or QUIET.get(),
    )  # fmt: skip
