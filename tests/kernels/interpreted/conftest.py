import os

import numpy as np
import pytest
import torch
import triton.language as tl

from eblvm.kernels.runtime import tiles


def pytest_collection_modifyitems(config, items):
    """The interpreter is slow, and computes in float32 as in float64: every size in float64, float32 where a tile is
    crossed; all with `make kernels`."""
    if os.environ.get("EBLVM_ALL_KERNELS") == "1":
        return
    kept = [item for item in items if not repeats(getattr(item, "callspec", None))]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def repeats(case):
    if case is None or case.params.get("dtype") != torch.float32 or "size" not in case.params:
        return False
    return 100 not in case.params["size"]


@pytest.fixture
def split_in(monkeypatch):
    """Every launch in that many parts, added by the last program of a block."""
    ranked = tiles.ranked

    def split(parts: int) -> None:
        monkeypatch.setattr(tiles, "ranked", lambda *problem: (ranked(*problem)[0]._replace(split=parts),))

    return split


@pytest.fixture(autouse=True, scope="session")
def bfloat16_products():
    """The interpreter multiplies the bits of bfloat16 tiles as integers; here it multiplies their values."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    plain = InterpreterBuilder.create_dot

    def widened(handle):
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def dot(self, a, b, d, *rest):
        return plain(self, widened(a), widened(b), d, *rest)

    InterpreterBuilder.create_dot = dot
    yield
    InterpreterBuilder.create_dot = plain
