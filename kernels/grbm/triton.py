"""Energy and score of a GRBM in Triton, and their first order: one launch each, with the products inside.

`triton_rows.py` has the kernel of the samples, `triton_columns.py` that of the parameters; `grbm_dsm` and `sliced_hvp`
are launches of the same two. Sums are float32 (float64 for float64 inputs) whatever the inputs' type, and always in the
same order. Where D does not fit into registers, `triton_wide.py` is used: torch's products and a kernel after each.
"""

from collections.abc import Iterator
from itertools import product

import torch
import triton
from torch import Tensor

from eblvm.kernels.grbm import triton_wide
from eblvm.kernels.grbm.triton_columns import columns_kernel
from eblvm.kernels.grbm.triton_rows import FREE, GIVEN, PULL, RESIDUAL, SLICED, rows_kernel
from eblvm.kernels.runtime import tiles, tuning
from eblvm.kernels.runtime.pointers import pointers
from eblvm.kernels.runtime.tiles import Problem, Tiles, power_of_two
from eblvm.kernels.runtime.triton_report import CAPABILITIES, Variant

BV = 64  # visible units of a program that sums over samples; a thread loads four of a row at once
ROW_PRODUCTS = {FREE.value: 2, GIVEN.value: 1, RESIDUAL.value: 2, SLICED.value: 3, PULL.value: 3}
COLUMN_PRODUCTS = {FREE.value: 4, GIVEN.value: 2, RESIDUAL.value: 5, SLICED.value: 6}  # v + sigma eps costs too
NAMES = {
    FREE.value: "free",
    GIVEN.value: "given",
    RESIDUAL.value: "residual",
    SLICED.value: "sliced",
    PULL.value: "pull",
}
OF_ROWS = ("eps", "h", "g", "r", "u")  # tensors that not every kind reads
OF_COLUMNS = ("eps", "h", "g", "r", "u", "score", "k", "row", "v_bar", "h_bar", "loss")


def fits(v: Tensor, W: Tensor, M: int = 1) -> bool:
    """Are these kernels for v and M directions? Their offsets inside a replica are 32 bits wide."""
    D, H = W.shape[-2:]
    return tiles.fits(D, v.element_size()) and v.shape[-2] * max(M * D, H, part_width(D, M)) < 2**31


def part_width(D: int, M: int) -> int:
    """Numbers of a sample in a part of a split: a W^T, its sum over latent units, u^T H u; then to a multiple of 16."""
    return triton.cdiv(D + 1 + power_of_two(max(M, 1)), 16) * 16


def launch_rows(
    kind: int,
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    *,
    sigma: float = 0.0,
    **others: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """(a value per sample [..., B], u^T H u [..., M, B], a result [..., B, D]); `others` by the names of pointers."""
    batch, (D, H), M = v.shape[-2], W.shape[-2:], others["u"].shape[-3] if "u" in others else 0
    row, out = (torch.empty(shape, dtype=v.dtype, device=v.device) for shape in (v.shape[:-1], v.shape))
    curvature = torch.empty(others["u"].shape[:-1], dtype=v.dtype, device=v.device) if M else row
    if v.numel() == 0:
        return row.zero_(), curvature.zero_(), out
    named = dict.fromkeys(OF_ROWS, v.new_empty(0)) | {"v": v, "W": W, "b": b, "c": c, "log_sigma": log_sigma} | others
    named = {name: t.contiguous() for name, t in named.items()} | {"row": row, "curvature": curvature, "out": out}
    replicas = W.shape[:-2].numel()
    problem = problem_of("rows", v, W, products_of("rows", kind, M), NAMES[kind])

    def run(t: Tiles) -> None:
        blocks = triton.cdiv(batch, t.BM)
        parts = scratch(v, t.split, (replicas, t.split, batch, part_width(D, M)), replicas * blocks)
        rows_kernel[(blocks, t.split, replicas)](
            **pointers(rows_kernel, {"part": parts[0], "ticket": parts[1]} | named),
            batch=batch,
            **rows_constants(kind, D, H, M, sigma, problem, t),
            num_warps=t.warps,
            maxnreg=t.registers,
        )

    tuning.launch(problem, v, run)
    return row, curvature, out


def launch_columns(
    kind: int,
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    *,
    sigma: float = 0.0,
    wants_v: bool = False,
    wants_h: bool = False,
    **others: Tensor,
) -> dict[str, Tensor]:
    """Gradients of W, b, c, log_sigma, with `wants_v` of v, with `wants_h` of h; RESIDUAL: also the loss [...]."""
    batch, (D, H), M = v.shape[-2], W.shape[-2:], others["u"].shape[-3] if "u" in others else 0
    named = (
        dict.fromkeys(OF_COLUMNS, v.new_empty(0)) | {"v": v, "W": W, "b": b, "c": c, "log_sigma": log_sigma} | others
    )
    wanted = {"W_bar": W, "b_bar": b, "c_bar": c, "log_sigma_bar": log_sigma} | ({"v_bar": v} if wants_v else {})
    wanted |= {"h_bar": others["h"]} if wants_h else {}
    out = {name: torch.empty(t.shape, dtype=v.dtype, device=v.device) for name, t in wanted.items()}
    if kind == RESIDUAL.value:
        out["loss"] = torch.empty(W.shape[:-2], dtype=v.dtype, device=v.device)
    if W.numel() == 0 or v.numel() == 0:
        return {name: t.zero_() for name, t in out.items()}
    named = {name: t.contiguous() for name, t in named.items()} | out
    replicas = W.shape[:-2].numel()
    name = NAMES[kind] + "-v" * wants_v + "-h" * wants_h
    problem = problem_of("columns", v, W, products_of("columns", kind, M), name)

    def run(t: Tiles) -> None:
        blocks = triton.cdiv(H, t.BH) * triton.cdiv(D, t.each * t.BD)
        parts = scratch(v, t.split, (replicas, t.split, D + 1, H), replicas * blocks)
        columns_kernel[(blocks + triton.cdiv(D, BV), t.split, replicas)](
            **pointers(columns_kernel, {"part": parts[0], "ticket": parts[1]} | named),
            batch=batch,
            **columns_constants(kind, D, H, M, sigma, problem, t, wants_v, wants_h),
            num_warps=t.warps,
            maxnreg=t.registers,
        )

    tuning.launch(problem, v, run)
    return out


def products_of(plan: tiles.Plan, kind: int, M: int) -> int:
    """Of batch x D x H, with M directions."""
    further = max(M - 1, 0)
    return ROW_PRODUCTS[kind] + further if plan == "rows" else COLUMN_PRODUCTS[kind] + 2 * further


def problem_of(plan: tiles.Plan, v: Tensor, W: Tensor, products: int, kernel: str, splits: bool = True) -> Problem:
    (batch, (D, H)), replicas, capability = (v.shape[-2], W.shape[-2:]), W.shape[:-2].numel(), capability_of(v)
    precision, name = tiles.dot_precision(v.dtype, capability), f"{kernel} {str(v.dtype).removeprefix('torch.')}"
    return Problem(plan, batch, D, H, replicas, v.element_size(), products, precision, capability, name, splits)


def capability_of(v: Tensor) -> int:
    """The compute capability of the device of v, 80 without one."""
    major, minor = torch.cuda.get_device_capability(v.device) if v.device.type == "cuda" else (8, 0)
    return 10 * major + minor


def scratch(like: Tensor, split: int, shape: tuple[int, ...], tickets: int) -> tuple[Tensor, Tensor]:
    """Memory for the parts of a split, and zeros to count those that are done; both empty if there is one part."""
    if split == 1:
        return like.new_empty(0), like.new_empty(0)
    real = torch.float64 if like.dtype == torch.float64 else torch.float32
    parts = torch.empty(shape, dtype=real, device=like.device)
    return parts, torch.zeros(tickets, dtype=torch.int32, device=like.device)


def rows_constants(kind: int, D: int, H: int, M: int, sigma: float, problem: Problem, t: Tiles) -> dict[str, object]:
    widths = {"D": D, "H": H, "M": M, "MP": power_of_two(max(M, 1)), "WIDTH": part_width(D, M)}
    return widths | {"KIND": kind, "SIGMA": sigma} | shape_of(problem, t)


def columns_constants(
    kind: int, D: int, H: int, M: int, sigma: float, problem: Problem, t: Tiles, wants_v: bool, wants_h: bool
) -> dict[str, object]:
    wants = {"WANTS_V": wants_v, "WANTS_H": wants_h, "EACH": t.each, "BV": BV}
    return {"D": D, "H": H, "M": M, "KIND": kind, "SIGMA": sigma} | wants | shape_of(problem, t)


def shape_of(problem: Problem, t: Tiles) -> dict[str, object]:
    return {
        "WIDE": problem.element == 8,
        "SPLIT": t.split,
        "PRECISION": problem.precision,
        "BM": t.BM,
        "BD": t.BD,
        "BH": t.BH,
        "BK": t.BK,
    }


def value(v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, h: Tensor | None) -> tuple[Tensor, ...]:
    """`reference.value`, with an empty tensor in the place of the mean, which `first` computes again."""
    if not fits(v, W):
        return triton_wide.value(v, W, b, c, log_sigma, h)
    if h is None:
        energy, _, score = launch_rows(FREE.value, v, W, b, c, log_sigma)
        return energy, score, torch.empty((*W.shape[:-2], 0), dtype=v.dtype, device=v.device)
    energy, _, score = launch_rows(GIVEN.value, v, W, b, c, log_sigma, h=h)
    return energy, score


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
    if not fits(v, W):
        return triton_wide.first(g, r, kept, v, W, b, c, log_sigma, h, wants_v, wants_h)
    if h is None:
        gradients = launch_columns(FREE.value, v, W, b, c, log_sigma, g=g, r=r)
        if wants_v:
            gradients["v_bar"] = launch_rows(PULL.value, v, W, b, c, log_sigma, g=g, r=r)[2]
    else:
        gradients = launch_columns(
            GIVEN.value, v, W, b, c, log_sigma, wants_v=wants_v, wants_h=wants_h, g=g, r=r, h=h, score=kept
        )
    names = ("W_bar", "b_bar", "c_bar", "log_sigma_bar", "v_bar", "h_bar")
    return tuple(gradients[name] for name in names if name in gradients)


def variants() -> list[Variant]:
    """At Frey face's sizes, and GIVEN at those of the checkerboard; the wide ones as they are."""
    return [
        *fused_variants("grbm", {"value": FREE.value, "v": PULL.value}, {"first": FREE.value}),
        *fused_variants("grbm", {"given": GIVEN.value}, {"first given": GIVEN.value}, (100, 2, 4)),
        *triton_wide.variants(),
    ]


KINDS = (("fp32", "ieee"), ("fp32", "tf32"), ("fp32", "bf16x3"), ("bf16", "ieee"), ("fp64", "ieee"))
BYTES = {"fp64": 8, "fp32": 4, "bf16": 2}


def fused_variants(
    op: str,
    rows: dict[str, int],
    columns: dict[str, int],
    size: tuple[int, int, int] = (100, 560, 400),
    *,
    M: int = 0,
    sigma: float = 0.0,
) -> Iterator[Variant]:
    """The two kernels as they are launched by default: for all types and precisions at cc 80, in float32 and float64
    on the rest. float64 is compiled for the widest D that fits.
    """
    batch, D, H = size
    for (element, precision), capability in product(KINDS, (*CAPABILITIES, 89)):
        if capability != 80 and (element == "bf16" or precision != "ieee"):
            continue
        width = min(D, tiles.MOST_VISIBLE[BYTES[element]])
        plans: dict[tiles.Plan, dict[str, int]] = {"rows": rows, "columns": columns}
        for plan, kinds in plans.items():
            for name, kind in kinds.items():
                products = products_of(plan, kind, M)
                problem = Problem(plan, batch, width, H, 1, BYTES[element], products, precision, capability)
                label = f"{op} {name} {element} {precision}"
                yield fused_variant(label, kind, element, problem, tiles.ranked(problem)[0], M, sigma)


def fused_variant(
    label: str, kind: int, element: str, problem: Problem, t: Tiles, M: int = 0, sigma: float = 0.0
) -> Variant:
    """The kernel of a problem with these tiles."""
    kernel = rows_kernel if problem.plan == "rows" else columns_kernel
    if problem.plan == "rows":
        constants = rows_constants(kind, problem.D, problem.H, M, sigma, problem, t)
    else:
        constants = columns_constants(kind, problem.D, problem.H, M, sigma, problem, t, kind == GIVEN.value, False)
    arguments: dict[str, object] = {p: f"*{element}" for p in kernel.arg_names if p.endswith("_ptr")}
    real = "*fp64" if element == "fp64" else "*fp32"
    arguments |= {"ticket_ptr": "*i32", "part_ptr": real, "batch": problem.batch}
    return Variant(
        label, kernel, arguments, constants, t.warps, capabilities=(problem.capability,), fused=True,
        registers=t.registers,
    )  # fmt: skip
