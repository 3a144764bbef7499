"""Block Gibbs sweeps in Triton: torch's products, and one kernel after each that draws its noise where it is used.

Arithmetic between the products is float32, or float64 for float64 chains.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.philox.triton import NORMAL, UNIFORM, draw_words, transform
from eblvm.kernels.runtime.triton_report import Variant

BLOCK = 128  # blocks of four words in a program


@triton.jit
def noise_of(noise_ptr, seed_ptr, row, column, keep, count, width, step, purpose, first, KIND, DRAWN, BLOCK):
    """Noise of columns 4 * BLOCK * program_id(1) ... of one row, given or drawn."""
    if DRAWN:
        block = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        sample = tl.zeros_like(block).to(tl.int64) + first + row % count
        return transform(draw_words(tl.load(seed_ptr + row // count), sample, block, step, purpose), KIND)
    else:
        return tl.load(noise_ptr + row * width + column, mask=keep, other=0.0)


@triton.jit(do_not_specialize=["step", "purpose", "first", "count"])
def decide_kernel(
    x_ptr, c_ptr, noise_ptr, seed_ptr, h_ptr, step, purpose, first, count, width,
    DRAWN: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """h = 1[u < sigmoid(x + c)]."""
    real = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * 4 * BLOCK + tl.arange(0, 4 * BLOCK)
    keep = column < width
    u = noise_of(noise_ptr, seed_ptr, row, column, keep, count, width, step, purpose, first, UNIFORM, DRAWN, BLOCK)
    z = tl.load(x_ptr + row * width + column, mask=keep, other=0.0).to(real)
    z += tl.load(c_ptr + row // count * width + column, mask=keep, other=0.0).to(real)
    e = tl.exp(-tl.abs(z))
    s = tl.where(z >= 0, 1.0 / (1.0 + e), e / (1.0 + e))
    tl.store(h_ptr + row * width + column, tl.where(u.to(real) < s, 1.0, 0.0), mask=keep)


@triton.jit(do_not_specialize=["step", "purpose", "first", "count"])
def move_kernel(
    m_ptr, b_ptr, log_sigma_ptr, noise_ptr, seed_ptr, mean_ptr, v_ptr, step, purpose, first, count, width,
    DRAWN: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """mean = b + sigma^2 m and v = mean + sigma n."""
    real = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * 4 * BLOCK + tl.arange(0, 4 * BLOCK)
    keep = column < width
    n = noise_of(noise_ptr, seed_ptr, row, column, keep, count, width, step, purpose, first, NORMAL, DRAWN, BLOCK)
    at, own = row * width + column, row // count * width + column
    sigma = tl.exp(tl.load(log_sigma_ptr + own, mask=keep, other=0.0).to(real))
    mean = tl.load(b_ptr + own, mask=keep, other=0.0).to(real)
    mean += sigma * sigma * tl.load(m_ptr + at, mask=keep, other=0.0).to(real)
    tl.store(mean_ptr + at, mean, mask=keep)
    tl.store(v_ptr + at, mean + sigma * n.to(real), mask=keep)


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
    v, mean = v.contiguous().clone(), v.contiguous().clone()
    if v.numel() == 0:
        return v, mean
    b, c, log_sigma = b.contiguous(), c.contiguous(), log_sigma.contiguous()
    absent = v.new_empty(0)  # seeds of noise that is given, tensors of noise that is drawn
    seeds = absent if seed is None else seed.contiguous()
    count, (D, H) = v.shape[-2], W.shape[-2:]
    rows = v.numel() // D
    how = {
        "DRAWN": seed is not None,
        "WIDE": v.dtype == torch.float64,
        "BLOCK": BLOCK,
        "enable_fp_fusion": seed is None,
    }
    for i in range(sweeps):
        u, n = (absent, absent) if seed is not None else (uniforms[i].contiguous(), normals[i].contiguous())
        x = v @ W
        h = torch.empty_like(x)
        grid = (rows, triton.cdiv(H, 4 * BLOCK))
        decide_kernel[grid](x, c, u, seeds, h, step + i, purpose_h, first, count, H, **how)
        m = h @ W.mT
        v, mean = torch.empty_like(m), torch.empty_like(m)
        grid = (rows, triton.cdiv(D, 4 * BLOCK))
        move_kernel[grid](m, b, log_sigma, n, seeds, mean, v, step + i, purpose_v, first, count, D, **how)
    return v, mean


def variants() -> list[Variant]:
    variants = []
    pointers = {
        "decide": (decide_kernel, ("x_ptr", "c_ptr", "noise_ptr", "h_ptr")),
        "move": (move_kernel, ("m_ptr", "b_ptr", "log_sigma_ptr", "noise_ptr", "mean_ptr", "v_ptr")),
    }
    for name, (kernel, names) in pointers.items():
        for element, drawn in (("fp32", True), ("fp32", False), ("fp64", True)):
            arguments: dict[str, object] = dict.fromkeys(names, f"*{element}")
            arguments |= {"seed_ptr": "*i64", "step": 3, "purpose": 5 << 16, "first": 0, "count": 100, "width": 560}
            constants = {"DRAWN": drawn, "WIDE": element == "fp64", "BLOCK": BLOCK}
            label = f"gibbs {name} {'drawn' if drawn else 'given'} {element}"
            variants.append(Variant(label, kernel, arguments, constants, fp_fusion=not drawn))
    return variants
