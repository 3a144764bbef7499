"""How CUDA multiplies fp32 matrices; autocast and scaled gradients are `engine/autodiff/mixed_precision.py`."""

import torch


def set_products(precision: str) -> None:
    """Let CUDA round the factors of fp32 products to tf32, or forbid it: torch allows convolutions to by default."""
    kind = "tf32" if precision == "tf32" else "ieee"
    torch.backends.cuda.matmul.fp32_precision = kind
    torch.backends.cudnn.conv.fp32_precision = kind  # type: ignore[attr-defined]
