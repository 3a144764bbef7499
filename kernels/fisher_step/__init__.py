"""The pointwise parts of a lower step for the Fisher divergence, between its products; engine/methods/fused_fisher.py.

Five launches instead of seventeen. They carry no gradient: the step ends a graph. README.md has the formulas.
"""

from typing import Any

from torch import Tensor

from eblvm.kernels.fisher_step import reference
from eblvm.kernels.runtime.dispatch import TRITON, TRITON_REASON, Backend, backend_for

__all__ = ["backend", "backends"]


def backend(x: Tensor) -> Any:
    """The backend for x: `sample`, `slope`, `residual`, `curved` and `outputs_bar`, as in the reference."""
    return backend_for("fisher_step", x, reference, None)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return [
        Backend("fisher_step", "cpu", "reference", True, "steps by autograd are as fast there"),
        Backend("fisher_step", "cuda", "triton", TRITON, TRITON_REASON),
        Backend("fisher_step", "cuda", "reference", not TRITON, "triton is used" if TRITON else "always available"),
    ]
