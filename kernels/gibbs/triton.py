"""Block Gibbs sweeps in Triton: all sweeps of a block of chains in one launch, with the products and the noise inside.

Chains are independent, so a program runs all sweeps of BM chains: x = c + v W of a block of latent units, h drawn
behind it, the block's part of h W^T into registers; after the last block v is drawn. Where D does not fit into
registers, `triton_wide.py` is used.
"""

# The kernels are in a language of their own, which has no types and no unpacking.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"
# ruff: noqa: RUF005

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.bernoulli_lower.triton import sigmoid
from eblvm.kernels.gibbs import triton_wide
from eblvm.kernels.grbm.triton import fits, problem_of
from eblvm.kernels.grbm.triton_rows import latent, put, tile, vector, zeros
from eblvm.kernels.philox.triton import NORMAL, UNIFORM, draw_words, transform
from eblvm.kernels.runtime import tiles, tuning
from eblvm.kernels.runtime.pointers import stacked
from eblvm.kernels.runtime.tiles import Problem, Tiles
from eblvm.kernels.runtime.triton_report import CAPABILITIES, Variant


@triton.jit
def drawn(seed, row, first, step, purpose, start, KIND: tl.constexpr, BM: tl.constexpr, WIDTH: tl.constexpr):
    """Noise of the chains `row` and WIDTH columns from `start` on, a multiple of four."""
    block = tl.zeros([BM, WIDTH // 4], dtype=tl.int32) + (start // 4 + tl.arange(0, WIDTH // 4))[None, :]
    sample = tl.zeros([BM, WIDTH // 4], dtype=tl.int64) + (first + row)[:, None]
    return transform(draw_words(seed, sample, block, step, purpose), KIND)


@triton.jit(do_not_specialize=["step", "purpose_h", "purpose_v", "first", "sweeps"])
def sweeps_kernel(
    v0_ptr, W_ptr, b_ptr, c_ptr, log_sigma_ptr, uniform_ptr, normal_ptr, seed_ptr, v_ptr, mean_ptr,
    step, purpose_h, purpose_v, first, sweeps, batch,
    D: tl.constexpr, H: tl.constexpr, DRAWN: tl.constexpr, WIDE: tl.constexpr,
    PRECISION: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Program (block of chains, replica)."""
    real: tl.constexpr = tl.float64 if WIDE else tl.float32
    CHUNKS: tl.constexpr = (D + BD - 1) // BD
    replica, replicas = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    W_ptr += replica * D * H
    c_ptr += replica * H
    v_ptr += replica * batch * D
    mean_ptr += replica * batch * D
    seed = tl.load(seed_ptr + replica)
    for begin in range(0, D, BD):
        d = begin + tl.arange(0, BD)
        put(v_ptr, tile(v0_ptr + replica * batch * D, row, d, batch, D), row, d, batch, D)
    for i in range(sweeps):
        tl.debug_barrier()
        pulled = zeros(CHUNKS, BM, BD, real)
        for begin in range(0, H, BH):
            h = begin + tl.arange(0, BH)
            x = latent(v_ptr, v_ptr, W_ptr, row, h, batch, D, H, 0, real, PRECISION, BM, BH, BK)
            if DRAWN:
                u = drawn(seed, row, first, step + i, purpose_h, begin, UNIFORM, BM, BH)
            else:
                u = tile(uniform_ptr + (i * replicas + replica) * batch * H, row, h, batch, H)
            on = tl.where(u.to(real) < sigmoid(x + vector(c_ptr, h, H, real)[None, :]), 1.0, 0.0)
            moved = ()
            for j in tl.static_range(CHUNKS):
                w = tl.trans(tile(W_ptr, j * BD + tl.arange(0, BD), h, D, H))
                moved = moved + (tl.dot(on.to(w.dtype), w, pulled[j], input_precision=PRECISION, out_dtype=real),)
            pulled = moved
        for j in tl.static_range(CHUNKS):
            put(mean_ptr, pulled[j], row, j * BD + tl.arange(0, BD), batch, D)
        tl.debug_barrier()
        for begin in range(0, D, BD):  # a loop, not unrolled: the noise has many registers
            d = begin + tl.arange(0, BD)
            if DRAWN:
                n = drawn(seed, row, first, step + i, purpose_v, begin, NORMAL, BM, BD)
            else:
                n = tile(normal_ptr + (i * replicas + replica) * batch * D, row, d, batch, D)
            sigma = tl.exp(vector(log_sigma_ptr + replica * D, d, D, real))[None, :]
            mean = sigma * sigma * tile(mean_ptr, row, d, batch, D).to(real)
            mean += vector(b_ptr + replica * D, d, D, real)[None, :]
            put(v_ptr, mean + sigma * n.to(real), row, d, batch, D)
            put(mean_ptr, mean, row, d, batch, D)


def gibbs(
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    uniforms: Sequence[Tensor],
    normals: Sequence[Tensor],
    seed: Tensor | None,
    step: int,
    purpose_h: int,
    purpose_v: int,
    first: int,
    sweeps: int,
) -> tuple[Tensor, Tensor]:
    """`reference.gibbs` on the device of v."""
    if not fits(v, W) or v.numel() == 0 or sweeps == 0 or W.shape[-1] == 0:
        return triton_wide.gibbs(
            v, W, b, c, log_sigma, uniforms, normals, seed, step, purpose_h, purpose_v, first, sweeps
        )
    batch, replicas = v.shape[-2], W.shape[:-2].numel()
    out, mean = (torch.empty(v.shape, dtype=v.dtype, device=v.device) for _ in range(2))
    v, W, b, c, log_sigma = (t.contiguous() for t in (v, W, b, c, log_sigma))
    # Noise that is drawn has no tensors; the seeds are read in any case, as integers.
    u, n = (v.new_empty(0),) * 2 if seed is not None else (stacked(uniforms), stacked(normals))
    seeds = torch.zeros(replicas, dtype=torch.int64, device=v.device) if seed is None else seed.contiguous()
    problem = problem_of("rows", v, W, 2, "gibbs-given" if seed is None else "gibbs-drawn", splits=False)

    def run(t: Tiles) -> None:
        sweeps_kernel[(triton.cdiv(batch, t.BM), replicas)](
            v, W, b, c, log_sigma, u, n, seeds, out, mean, step, purpose_h, purpose_v, first, sweeps, batch,
            **_constants(problem, t, seed is not None), num_warps=t.warps, maxnreg=t.registers,
            enable_fp_fusion=seed is None,
        )  # fmt: skip

    tuning.launch(problem, v, run)
    return out, mean


def _constants(problem: Problem, t: Tiles, drawn: bool) -> dict[str, object]:
    shape = {"BM": t.BM, "BD": t.BD, "BH": t.BH, "BK": t.BK, "WIDE": problem.element == 8}
    return {"D": problem.D, "H": problem.H, "DRAWN": drawn, "PRECISION": problem.precision, **shape}


def variants() -> list[Variant]:
    """Frey face's sizes: float32 with drawn noise on every architecture, tf32 and given noise at cc 80."""
    variants = []
    for element, precision, drawn in (("fp32", "ieee", True), ("fp32", "tf32", True), ("fp32", "ieee", False)):
        everywhere = precision == "ieee" and drawn
        for capability in CAPABILITIES if everywhere else (80,):
            problem = Problem("rows", 100, 560, 400, 1, 4, 2, precision, capability, splits=False)
            t = tiles.ranked(problem)[0]
            arguments: dict[str, object] = {p: f"*{element}" for p in sweeps_kernel.arg_names if p.endswith("_ptr")}
            arguments |= {"seed_ptr": "*i64", "sweeps": 10, "batch": 100}
            arguments |= {"step": 3, "purpose_h": 5 << 16, "purpose_v": 6 << 16, "first": 0}
            label = f"gibbs {'drawn' if drawn else 'given'} {element} {precision}"
            values = _constants(problem, t, drawn)
            variants.append(
                Variant(
                    label, sweeps_kernel, arguments, values, t.warps, not drawn, (capability,), fused=True,
                    registers=t.registers,
                )
            )  # fmt: skip
    return variants + triton_wide.variants()
