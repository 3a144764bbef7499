"""How CUDA multiplies fp32 matrices; autocast and scaled gradients are `engine/autodiff/mixed_precision.py`."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_products(precision: str) -> None:
    """Let CUDA round the factors of fp32 products to tf32, or forbid it: torch allows convolutions to by default."""
    kind = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind  # type: ignore[attr-defined]


@contextmanager
def full_products() -> Iterator[None]:
    """Exact fp32 products inside; outside they stay as they were."""
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = matmul.fp32_precision, conv.fp32_precision
    set_products("fp32")
    try:
        yield
    finally:
        matmul.fp32_precision, conv.fp32_precision = before
