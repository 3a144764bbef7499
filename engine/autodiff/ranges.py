"""Names for the parts of a step in a profiler: `with named("features"): ...`.

They cost nothing until they are switched on, by `eblvm profile --trace`, or by EBLVM_NVTX=1 for NVIDIA's tools, as in
`EBLVM_NVTX=1 nsys profile eblvm train ...`.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

NVTX = os.environ.get("EBLVM_NVTX", "0") == "1"
_NONE = nullcontext()
_on = NVTX


def named(part: str) -> AbstractContextManager[Any]:
    """Name a part of a step."""
    return _range(part) if _on else _NONE


@contextmanager
def switched_on() -> Iterator[None]:
    """Show the names inside the block to torch's profiler, which writes them to its traces."""
    global _on
    before, _on = _on, True
    try:
        yield
    finally:
        _on = before


@contextmanager
def _range(part: str) -> Iterator[None]:
    with torch.profiler.record_function(f"eblvm: {part}"):
        if NVTX and torch.cuda.is_available():
            with torch.cuda.nvtx.range(part):
                yield
        else:
            yield
