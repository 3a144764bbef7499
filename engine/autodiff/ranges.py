"""Names for the parts of a step, as a profiler shows them: `with named("features"): ...`.

They cost nothing until they are switched on: by `eblvm profile --trace`, or by EBLVM_NVTX=1 for NVIDIA's tools, as in
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
    """A part of a step under its name."""
    return _range(part) if _on else _NONE


@contextmanager
def switched_on() -> Iterator[None]:
    """Names inside are seen by torch's profiler, whose traces have them."""
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
