"""The backends of an op to compare, and how close their results must be."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor


def needs_native(op: ModuleType) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not op._NATIVE, reason="the native library is not built")


def backends(op: ModuleType) -> list[Any]:
    """The reference of `op` and its native functions, as parameters of a test."""
    reference = getattr(op, "Reference", op.reference)
    return [pytest.param(reference, id="reference"), pytest.param(op._Native, id="native", marks=needs_native(op))]


def assert_close(got: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float) -> None:
    """Shapes and dtypes are equal, values up to `tolerance` times the largest entry, or times 1 if that is more."""
    for g, e in zip(got, expected, strict=True):
        assert g.shape == e.shape
        assert g.dtype == e.dtype
        scale = float(e.abs().max()) if e.numel() else 0.0
        torch.testing.assert_close(g, e, rtol=tolerance, atol=tolerance * max(scale, 1.0))
