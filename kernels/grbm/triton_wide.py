"""Energy and score of a GRBM in Triton, and their first order: torch's products, and one kernel after each.

Arithmetic between the products is float32 (float64 for float64 inputs) whatever the inputs' type. Row kernels have one
program per sample; a program of a column kernel has COLS units of a replica and walks down its batch, so sums over it
need no atomics.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.bernoulli_lower.triton import sigmoid, softplus
from eblvm.kernels.runtime.tiles import ALL_REGISTERS
from eblvm.kernels.runtime.triton_report import Variant

FREE, GIVEN, SQUARE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
BLOCK = 256  # columns of a row at once
ROWS, COLS = 16, 32  # the tile of a column kernel


@triton.jit(do_not_specialize=["batch"])
def latent_kernel(
    latent_ptr, c_ptr, row_ptr, batch, width, KIND: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """FREE: v W becomes sigmoid(c + v W), and the row's sum of softplus; GIVEN: the row's c.h."""
    real = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=real)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        keep = column < width
        latent = tl.load(latent_ptr + row * width + column, mask=keep, other=0.0).to(real)
        c = tl.load(c_ptr + row // batch * width + column, mask=keep, other=0.0).to(real)
        if KIND == FREE:
            tl.store(latent_ptr + row * width + column, sigmoid(latent + c), mask=keep)
            total += tl.where(keep, softplus(latent + c), 0.0)
        else:
            total += latent * c
    tl.store(row_ptr + row, tl.sum(total, 0))


@triton.jit(do_not_specialize=["batch"])
def score_kernel(
    score_ptr, v_ptr, b_ptr, log_sigma_ptr, row_ptr, batch, width,
    KIND: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The score's latent part becomes the score; the row's latent sum its energy, or with SQUARE 1/2 |score|^2."""
    real = tl.float64 if WIDE else tl.float32
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=real)
    for begin in range(0, width, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        keep = column < width
        own = row // batch * width + column
        at = row * width + column
        v = tl.load(v_ptr + at, mask=keep, other=0.0).to(real)
        z = v - tl.load(b_ptr + own, mask=keep, other=0.0).to(real)
        away = z * tl.exp(-2.0 * tl.load(log_sigma_ptr + own, mask=keep, other=0.0).to(real))
        pull = tl.load(score_ptr + at, mask=keep, other=0.0).to(real)
        score = pull - away
        tl.store(score_ptr + at, score, mask=keep)
        if KIND == SQUARE:
            total += 0.5 * score * score
        else:
            total += 0.5 * z * away
        if KIND == GIVEN:
            total -= v * pull
    energy = tl.sum(total, 0)
    if KIND != SQUARE:
        energy -= tl.load(row_ptr + row).to(real)
    tl.store(row_ptr + row, energy)


@triton.jit(do_not_specialize=["batch"])
def latent_first_kernel(
    t_ptr, mean_ptr, g_ptr, c_bar_ptr, batch, width, WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):  # fmt: skip
    """t = r W becomes the cotangent of c + v W, sigmoid' t - g mean, whose column sums are c's."""
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], dtype=real)
    for begin in range(0, batch, ROWS):
        row = begin + tl.arange(0, ROWS)
        keep = (row < batch)[:, None] & (column < width)[None, :]
        sample = replica * batch + row
        at = sample[:, None] * width + column[None, :]
        g = tl.load(g_ptr + sample, mask=row < batch, other=0.0).to(real)[:, None]
        mean = tl.load(mean_ptr + at, mask=keep, other=0.0).to(real)
        x_bar = mean * ((1.0 - mean) * tl.load(t_ptr + at, mask=keep, other=0.0).to(real) - g)
        tl.store(t_ptr + at, x_bar, mask=keep)
        total += tl.sum(x_bar, 0)
    tl.store(c_bar_ptr + replica * width + column, total, mask=column < width)


@triton.jit(do_not_specialize=["batch"])
def visible_first_kernel(
    g_ptr, r_ptr, score_ptr, v_ptr, b_ptr, log_sigma_ptr, b_bar_ptr, log_sigma_bar_ptr, v_bar_ptr, pulled_ptr,
    batch, width, KIND: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Cotangents of b, log_sigma and v, of the last without the part through the mean; GIVEN: also r - g v."""
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLS + tl.arange(0, COLS)
    inside = column < width
    own = replica * width + column
    b = tl.load(b_ptr + own, mask=inside, other=0.0).to(real)[None, :]
    precision = tl.exp(-2.0 * tl.load(log_sigma_ptr + own, mask=inside, other=0.0).to(real))[None, :]
    b_bar, log_sigma_bar = tl.zeros([COLS], dtype=real), tl.zeros([COLS], dtype=real)
    for begin in range(0, batch, ROWS):
        row = begin + tl.arange(0, ROWS)
        keep = (row < batch)[:, None] & inside[None, :]
        sample = replica * batch + row
        at = sample[:, None] * width + column[None, :]
        g = tl.load(g_ptr + sample, mask=row < batch, other=0.0).to(real)[:, None]
        r = tl.load(r_ptr + at, mask=keep, other=0.0).to(real)
        v = tl.load(v_ptr + at, mask=keep, other=0.0).to(real)
        z = v - b
        away = z * precision
        b_bar += tl.sum(r * precision - g * away, 0)
        log_sigma_bar += tl.sum(away * (2.0 * r - g * z), 0)
        if KIND == GIVEN:
            score = tl.load(score_ptr + at, mask=keep, other=0.0).to(real)
            tl.store(v_bar_ptr + at, -g * score - r * precision, mask=keep)
            tl.store(pulled_ptr + at, r - g * v, mask=keep)
        else:
            tl.store(v_bar_ptr + at, g * away - r * precision, mask=keep)
    tl.store(b_bar_ptr + own, b_bar, mask=inside)
    tl.store(log_sigma_bar_ptr + own, log_sigma_bar, mask=inside)


def launch_rows(kernel: triton.JITFunction, tensors: tuple[Tensor, ...], batch: int, width: int, **kind: float) -> None:
    """One program per row of the first tensor."""
    rows = tensors[0].shape[:-1].numel()
    if rows:
        kernel[(rows,)](*tensors, batch, width, **kind, WIDE=tensors[0].dtype == torch.float64, BLOCK=BLOCK)


def launch_columns(
    kernel: triton.JITFunction, tensors: tuple[Tensor, ...], replicas: int, batch: int, width: int, **kind: float
) -> None:
    """A program for COLS columns of a replica."""
    if replicas * width:
        wide = tensors[0].dtype == torch.float64
        grid = (triton.cdiv(width, COLS), replicas)
        kernel[grid](*tensors, batch, width, **kind, WIDE=wide, ROWS=ROWS, COLS=COLS, maxnreg=ALL_REGISTERS)


def value(v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, h: Tensor | None) -> tuple[Tensor, ...]:
    """`reference.value`."""
    v, b, c, log_sigma = (t.contiguous() for t in (v, b, c, log_sigma))
    latent = v @ W if h is None else h.contiguous()
    kind = FREE.value if h is None else GIVEN.value
    energy = torch.empty(v.shape[:-1], dtype=v.dtype, device=v.device)
    launch_rows(latent_kernel, (latent, c, energy), v.shape[-2], W.shape[-1], KIND=kind)
    score = latent @ W.mT
    launch_rows(score_kernel, (score, v, b, log_sigma, energy), v.shape[-2], W.shape[-2], KIND=kind)
    return (energy, score, latent) if h is None else (energy, score)


def first(
    g: Tensor,
    r: Tensor,
    kept: Tensor,
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    h: Tensor | None,
    wants_v: bool,
    wants_h: bool,
) -> tuple[Tensor, ...]:
    """`reference.first`."""
    g, r, kept, v, b, log_sigma = (t.contiguous() for t in (g, r, kept, v, b, log_sigma))
    replicas, batch, (D, H) = W.shape[:-2].numel(), v.shape[-2], W.shape[-2:]
    b_bar, log_sigma_bar, v_bar = torch.empty_like(b), torch.empty_like(log_sigma), torch.empty_like(v)
    pulled = v_bar if h is None else torch.empty_like(v)
    visible = (g, r, kept, v, b, log_sigma, b_bar, log_sigma_bar, v_bar, pulled)
    kind = FREE.value if h is None else GIVEN.value
    launch_columns(visible_first_kernel, visible, replicas, batch, D, KIND=kind)
    if h is None:
        x_bar, c_bar = r @ W, torch.empty(c.shape, dtype=c.dtype, device=c.device)
        launch_columns(latent_first_kernel, (x_bar, kept, g, c_bar), replicas, batch, H)
        W_bar = sum_of_products((v, x_bar), (r, kept))
        return W_bar, b_bar, c_bar, log_sigma_bar, *([v_bar + x_bar @ W.mT] if wants_v else [])
    gradients = [pulled.mT @ h, b_bar, -(g.unsqueeze(-2) @ h).squeeze(-2), log_sigma_bar]
    if wants_v:
        gradients.append(v_bar)
    if wants_h:
        gradients.append(pulled @ W - g.unsqueeze(-1) * c.unsqueeze(-2))
    return tuple(gradients)


def sum_of_products(*pairs: tuple[Tensor, Tensor]) -> Tensor:
    """The sum of left^T right over the pairs, accumulated in the first product."""
    (left, right), *others = pairs
    out = left.mT @ right
    replicas = out.shape[:-2].numel()
    for left, right in others:
        left, right = (t.reshape(replicas, *t.shape[-2:]) for t in (left, right))
        out.view(replicas, *out.shape[-2:]).baddbmm_(left.mT, right)
    return out


def variants_of(
    op: str, kernels: Mapping[str, tuple[triton.JITFunction, str, Mapping[str, float]]], columns: bool
) -> list[Variant]:
    """The kernels, each with the names of its pointers and its constexprs, for float32, bfloat16 and float64."""
    variants = []
    tile = {"ROWS": ROWS, "COLS": COLS} if columns else {"BLOCK": BLOCK}
    for element in ("fp32", "bf16", "fp64"):
        for name, (kernel, pointers, kind) in kernels.items():
            arguments = dict.fromkeys(pointers.split(), f"*{element}") | {"batch": 100, "width": 2048}
            constants = {**kind, "WIDE": element == "fp64", **tile}
            registers = ALL_REGISTERS if columns else None
            variants.append(Variant(f"{op} {name} {element}", kernel, arguments, constants, registers=registers))
    return variants


def variants() -> list[Variant]:
    free, given = {"KIND": FREE.value}, {"KIND": GIVEN.value}
    latent, score = "latent_ptr c_ptr row_ptr", "score_ptr v_ptr b_ptr log_sigma_ptr row_ptr"
    visible = "g_ptr r_ptr score_ptr v_ptr b_ptr log_sigma_ptr b_bar_ptr log_sigma_bar_ptr v_bar_ptr pulled_ptr"
    rows = {
        "latent free": (latent_kernel, latent, free),
        "latent given": (latent_kernel, latent, given),
        "score free": (score_kernel, score, free),
        "score given": (score_kernel, score, given),
    }
    columns = {
        "latent first": (latent_first_kernel, "t_ptr mean_ptr g_ptr c_bar_ptr", {}),
        "visible first free": (visible_first_kernel, visible, free),
        "visible first given": (visible_first_kernel, visible, given),
    }
    return variants_of("grbm", rows, False) + variants_of("grbm", columns, True)
