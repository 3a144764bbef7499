import numpy as np
import pytest
import triton.language as tl

from eblvm.kernels.common import tiles


@pytest.fixture
def split_in(monkeypatch):
    """Every launch in that many parts, added by the last program of a block."""
    ranked = tiles.ranked

    def split(parts: int) -> None:
        monkeypatch.setattr(tiles, "ranked", lambda problem: (ranked(problem)[0]._replace(split=parts),))

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
