"""The automatic step size of unrolled SGD in one launch: a replica's power iterations by one program."""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.grbm.triton_rows import tile, vector
from eblvm.kernels.runtime.triton_report import Variant

LARGEST = 512  # samples; beyond that torch's products are faster than one program that reads M
ITERATIONS, WARPS = 16, 4


@triton.jit
def rate_kernel(
    M_ptr, y_ptr, rate_ptr, batch, WIDE: tl.constexpr, STEPS: tl.constexpr, BM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """6 / lambda_max(M / B). y [B] goes through memory from step to step: a row's sum is another thread's factor."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(0).to(tl.int64)
    M_ptr += replica * batch * batch
    y_ptr += replica * batch
    j = tl.arange(0, BLOCK)
    y = tl.where(j < batch, 1.0, 0.0).to(real)
    for _ in range(STEPS):
        y = y / tl.sqrt(tl.sum(y * y))
        for begin in range(0, batch, BM):
            i = begin + tl.arange(0, BM)
            product = tl.sum(tile(M_ptr, i, j, batch, batch) * y[None, :], 1)
            tl.store(y_ptr + i, product / batch, mask=i < batch)
        tl.debug_barrier()
        y = vector(y_ptr, j, batch, real)
        tl.debug_barrier()
    tl.store(rate_ptr + replica, 6 / tl.sqrt(tl.sum(y * y)))


def step_size(M: Tensor) -> Tensor:
    """`reference.step_size` from M = V V^T + 1 1^T [..., B, B], contiguous, of at most LARGEST samples."""
    batch, wide = M.shape[-1], M.dtype == torch.float64
    y, rate = torch.empty(M.shape[:-1], dtype=M.dtype, device=M.device), M.new_empty(M.shape[:-2])
    rate_kernel[(max(rate.numel(), 1),)](M, y, rate, batch, **_constants(batch, wide), num_warps=WARPS)
    return rate


def _constants(batch: int, wide: bool) -> dict[str, object]:
    return {"WIDE": wide, "STEPS": ITERATIONS, "BM": 4 if wide else 16, "BLOCK": triton.next_power_of_2(batch)}


def variants() -> list[Variant]:
    variants = []
    for element in ("fp32", "fp64"):
        arguments = {p: f"*{element}" for p in rate_kernel.arg_names if p.endswith("_ptr")} | {"batch": LARGEST}
        constants = _constants(LARGEST, element == "fp64")
        variants.append(Variant(f"grbm_bilevel rate {element}", rate_kernel, arguments, constants, WARPS))
    return variants
