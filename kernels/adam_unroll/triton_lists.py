"""Adam on a list of tensors in Triton: one launch for all of them, whatever their number and their order in memory.

Tensors are walked in their own order in memory: p, g, m and v of one parameter have the same. Bias corrections, the
step's number, weight decay, clipping and the moving average are part of the launch.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.adam_unroll.triton_list_kernels import (
    finite_kernel,
    norm_kernel,
    restore_kernel,
    reverses_kernel,
    squares_kernel,
    steps_kernel,
)
from eblvm.kernels.runtime.triton_report import Variant

WARPS = 8
MOST = 64  # tensors of a launch: six pointers each stay below the 4 KiB of arguments that every driver accepts
ALIGNED = 64  # elements: a tensor's results begin at multiples


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Are all elements of all tensors finite? A bool on the device."""
    walked = [walkable((x,), torch.Size())[0] for x in tensors]
    bad = torch.zeros((), dtype=torch.int32, device=walked[0].device)
    for part in launches(walked, torch.Size()):
        finite_kernel[part.grid](part.of(walked), bad, **part.only("FIRST", "SIZES", "COUNT", "BLOCK"), num_warps=WARPS)
    return bad == 0


def restore_(tensors: Sequence[Tensor], before: Sequence[Tensor], go: Tensor) -> None:
    """`tensors`, each dense, become those of `before` where `go` is false."""
    pairs = [(x, laid_out(y, x)) for x, y in zip(tensors, before, strict=True) if x is not y]
    now, then = [x for x, _ in pairs], [y for _, y in pairs]
    for part in launches(now, torch.Size()) if pairs else ():
        places = part.only("FIRST", "SIZES", "COUNT", "BLOCK")
        restore_kernel[part.grid](part.of(now), part.of(then), go, **places, num_warps=WARPS)


def steps_(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    step_count: Tensor,
    lr: Tensor,
    rule: Rule,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    average: Sequence[Tensor] = (),
    decay: float = 0.0,
    go: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(step_count + 1, the norm of all g); p, m and v, and the moving average of p, one step on in their own memory.

    With `go`, a bool on the device, nothing moves where it is false."""
    lead = step_count.shape
    norm, scale = norms(g, lead, clip_norm)
    places = [walkable(x, lead) for x in zip(p, m, v, *([average] if average else []), strict=True)]
    columns = [list(column) for column in zip(*places, strict=True)]
    p_, m_, v_, *e_ = columns
    like = [laid_out(x, place) for x, place in zip(g, p_, strict=True)]
    after = torch.empty_like(step_count)
    for k, part in enumerate(launches(p_, lead)):
        steps_kernel[part.grid](
            part.of(p_), part.of(like), part.of(m_), part.of(v_), part.of(e_[0] if e_ else p_),
            step_count, lr.contiguous(), scale, scale if go is None else go, p_[0], after, 0,
            **part.constants, **rule_constants(rule, p_[0].dtype == torch.float64), DECAY=weight_decay,
            EMA=decay if e_ else 0.0, CLIPS=clip_norm is not None, IN_PLACE=True, GATED=go is not None,
            COUNTS=k == 0, num_warps=WARPS,
        )  # fmt: skip
    for given, used in zip((p, m, v, average), columns, strict=False):
        for x, place in zip(given, used, strict=True):
            if place is not x:
                x.copy_(place)
    return after, norm


def steps(
    p: Sequence[Tensor],
    g: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    step_count: Tensor,
    lr: Tensor,
    rule: Rule,
    weight_decay: float = 0.0,
) -> tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]:
    """(p', m', v' of every tensor, step_count + 1), in new memory of p's order."""
    lead = step_count.shape
    p_ = [walkable((x,), lead)[0] for x in p]
    g_, m_, v_ = ([laid_out(x, place) for x, place in zip(xs, p_, strict=True)] for xs in (g, m, v))
    out, room, starts = results(p_)
    after = torch.empty_like(step_count)
    for k, part in enumerate(launches(p_, lead, starts)):
        steps_kernel[part.grid](
            part.of(p_), part.of(g_), part.of(m_), part.of(v_), part.of(p_),
            step_count, lr.contiguous(), lr, lr, out, after, room,
            **part.constants, **rule_constants(rule, out.dtype == torch.float64), DECAY=weight_decay, EMA=0.0,
            CLIPS=False, IN_PLACE=False, GATED=False, COUNTS=k == 0, num_warps=WARPS,
        )  # fmt: skip
    return *results_of(out, room, starts, p_), after


def reverses(
    p_bar: Sequence[Tensor],
    m_bar: Sequence[Tensor] | None,
    v_bar: Sequence[Tensor] | None,
    g: Sequence[Tensor],
    m: Sequence[Tensor],
    v: Sequence[Tensor],
    step_count: Tensor,
    lr: Tensor,
    rule: Rule,
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The cotangents of all g, m and v from those of p', m' and v'; None for those of m' and v' is zero."""
    lead = step_count.shape
    g_ = [walkable((x,), lead)[0] for x in g]
    others = [p_bar, m_bar or p_bar, v_bar or p_bar, m, v]
    bar, mb, vb, m_, v_ = ([laid_out(x, place) for x, place in zip(xs, g_, strict=True)] for xs in others)
    out, room, starts = results(g_)
    for part in launches(g_, lead, starts):
        reverses_kernel[part.grid](
            part.of(bar), part.of(mb), part.of(vb), part.of(g_), part.of(m_), part.of(v_),
            step_count, lr.contiguous(), out, room, **part.constants,
            **rule_constants(rule, out.dtype == torch.float64), MOMENTS=m_bar is not None, num_warps=WARPS,
        )  # fmt: skip
    return results_of(out, room, starts, g_)


def norms(g: Sequence[Tensor], lead: torch.Size, clip_norm: float | None) -> tuple[Tensor, Tensor]:
    """(the norm of all g, the factor that scales it down to at most `clip_norm`), of every replica."""
    walked = [walkable((x,), lead)[0] for x in g]
    parts = list(launches(walked, lead))
    tiles = sum(part.grid[0] for part in parts)
    squares = walked[0].new_empty((lead.numel(), tiles))
    norm, scale = (walked[0].new_empty(lead) for _ in range(2))
    before, wide = 0, squares.dtype == torch.float64
    for part in parts:
        places = part.only("FIRST", "SIZES", "COUNT", "BLOCK")
        squares_kernel[part.grid](part.of(walked), squares, tiles, before, **places, WIDE=wide, num_warps=WARPS)
        before += part.grid[0]
    norm_kernel[(lead.numel(),)](squares, norm, scale, tiles, CLIP=clip_norm or 0.0, WIDE=wide, BLOCK=1024)
    return norm, scale


def tile_size(dtype: torch.dtype) -> int:
    """Elements of a program: eight per thread, four of float64, fit into registers."""
    return 1024 if dtype == torch.float64 else 2048


class Launch(NamedTuple):
    """A part of a list: the numbers of its tensors, and the kernel's constants for them."""

    chosen: list[int]
    grid: tuple[int, int]
    constants: dict[str, Any]

    def of(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(tensors[i] for i in self.chosen)

    def only(self, *names: str) -> dict[str, Any]:
        return {name: self.constants[name] for name in names}


def launches(tensors: Sequence[Tensor], lead: torch.Size, starts: Sequence[int] = ()) -> Iterator[Launch]:
    """The list in parts of at most MOST tensors; those without elements are left out."""
    replicas, block = lead.numel(), tile_size(tensors[0].dtype)
    full = [i for i, x in enumerate(tensors) if x.numel()] or [0]
    for at in range(0, len(full), MOST):
        chosen = full[at : at + MOST]
        sizes = tuple(tensors[i].numel() // max(replicas, 1) for i in chosen)
        tiles = [triton.cdiv(size, block) for size in sizes]
        first = tuple(sum(tiles[:k]) for k in range(len(tiles)))
        begins = tuple(starts[i] for i in chosen) if starts else (0,) * len(chosen)
        constants = {"FIRST": first, "SIZES": sizes, "STARTS": begins, "COUNT": len(chosen), "BLOCK": block}
        yield Launch(chosen, (max(sum(tiles), 1), replicas), constants)


def walkable(tensors: Sequence[Tensor], lead: torch.Size) -> list[Tensor]:
    """The tensors as they are if all have one dense order in memory, replicas first; else contiguous copies."""
    order = strides(tensors[0])
    dense = tensors[0].is_contiguous() or (not lead and strides(torch.empty_like(tensors[0])) == order)
    if dense and all(strides(x) == order for x in tensors):
        return list(tensors)
    return [x if x.is_contiguous() else x.contiguous() for x in tensors]


def laid_out(x: Tensor, place: Tensor) -> Tensor:
    """x in the memory order of `place`."""
    return x if strides(x) == strides(place) else torch.empty_like(place).copy_(x)


def strides(x: Tensor) -> tuple[int, ...]:
    """Of the axes that have more than one element."""
    return tuple(step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1)


def results(tensors: Sequence[Tensor]) -> tuple[Tensor, int, list[int]]:
    """(memory for three results of every tensor, the elements of one of the three, the begin of each tensor's)."""
    starts, room = [], 0
    for x in tensors:
        starts.append(room)
        room += triton.cdiv(x.numel(), ALIGNED) * ALIGNED
    return tensors[0].new_empty(3 * room), room, starts


def results_of(
    out: Tensor, room: int, starts: Sequence[int], like: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The three results of every tensor, with its shape and order."""
    pairs = list(zip(like, starts, strict=True))
    first, second, third = ([out.as_strided(x.shape, x.stride(), k * room + s) for x, s in pairs] for k in range(3))
    return first, second, third


def rule_constants(rule: Rule, wide: bool) -> dict[str, float]:
    """Constexprs, since a float argument of a kernel is float32."""
    constants = {"B1": rule.b1, "B2": rule.b2, "EPS": rule.eps, "EPS_ROOT": rule.eps_root, "WIDE": wide}
    for name, b in (("LOG_B1", rule.b1), ("LOG_B2", rule.b2)):
        base = b if wide else float(np.float32(b))
        constants[name] = math.log(base) if base else -1e30  # 0^t = 0
    return constants


def variants() -> list[Variant]:
    """For lists of three tensors; a run's list has as many as its model."""
    variants = []
    three: dict[str, Any] = {"FIRST": (0, 5, 6), "SIZES": (5000, 64, 63), "COUNT": 3}
    for element in ("fp32", "fp64"):
        wide, pointers, one = element == "fp64", (f"*{element}",) * 3, f"*{element}"
        block = tile_size(torch.float64 if wide else torch.float32)
        three |= {"BLOCK": block}
        rule = rule_constants(Rule(), wide) | {"STARTS": (0, 5056, 5120)} | three
        lists: dict[str, Any] = dict.fromkeys(("p_ptrs", "g_ptrs", "m_ptrs", "v_ptrs", "e_ptrs"), pointers)
        ends = dict.fromkeys(("t_ptr", "lr_ptr", "scale_ptr", "out_ptr", "t_to"), one) | {
            "room": 5184,
            "go_ptr": "*i1",
        }
        for name, in_place in (("in place", True), ("new", False)):
            options = {"DECAY": 0.0, "EMA": 0.999 if in_place else 0.0, "CLIPS": in_place, "IN_PLACE": in_place}
            constants = rule | options | {"GATED": in_place, "COUNTS": True}
            variants.append(
                Variant(f"adam_unroll steps {name} {element}", steps_kernel, lists | ends, constants, WARPS)
            )
        lists = dict.fromkeys(("p_bar_ptrs", "m_bar_ptrs", "v_bar_ptrs", "g_ptrs", "m_ptrs", "v_ptrs"), pointers)
        ends = dict.fromkeys(("t_ptr", "lr_ptr", "out_ptr"), one) | {"room": 5184}
        constants = rule | {"MOMENTS": True}
        variants.append(Variant(f"adam_unroll reverses {element}", reverses_kernel, lists | ends, constants, WARPS))
        how = {"WIDE": wide, "BLOCK": block}
        arguments = {"x_ptrs": pointers, "out_ptr": one, "tiles": 7, "before": 0}
        variants.append(Variant(f"adam_unroll squares {element}", squares_kernel, arguments, three | how, WARPS))
        variants.append(
            Variant(
                f"adam_unroll finite {element}", finite_kernel, {"x_ptrs": pointers, "bad_to": "*i32"}, three, WARPS
            )
        )
        arguments = {"x_ptrs": pointers, "from_ptrs": pointers, "go_ptr": "*i1"}
        variants.append(Variant(f"adam_unroll restore {element}", restore_kernel, arguments, three, WARPS))
        arguments = {"squares_ptr": one, "norm_to": one, "scale_to": one, "tiles": 7}
        variants.append(Variant(f"adam_unroll norm {element}", norm_kernel, arguments, how | {"CLIP": 1.0}))
    return variants
