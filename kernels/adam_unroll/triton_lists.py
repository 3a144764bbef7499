"""Adam on a list of tensors in Triton: one launch for all of them, whatever their number and their order in memory.

Tensors are walked in their own order in memory: p, g, m and v of one parameter have the same. Bias corrections, the
step's number, weight decay, clipping and the moving average are part of the launch.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.kernels.adam_unroll.list_plans import Plan, plan_of, tile_size
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


def all_finite(tensors: Sequence[Tensor]) -> Tensor:
    """Are all elements of all tensors finite? A bool on the device."""
    plan = plan_of([tensors])
    walked = plan.walked(tensors)
    bad = torch.zeros((), dtype=torch.int32, device=walked[0].device)
    for part in plan.launches:
        finite_kernel[part.grid](part.of(walked), bad, **part.only("FIRST", "SIZES", "COUNT", "BLOCK"), num_warps=WARPS)
    return bad == 0


def restore_(tensors: Sequence[Tensor], before: Sequence[Tensor], go: Tensor) -> None:
    """`tensors`, each dense, become those of `before` where `go` is false."""
    pairs = [(x, y) for x, y in zip(tensors, before, strict=True) if x is not y]
    if not pairs:
        return
    now, then = [x for x, _ in pairs], [y for _, y in pairs]
    plan = plan_of([now], [then])
    then_ = plan.laid_out(0, then, now)
    for part in plan.launches:
        places = part.only("FIRST", "SIZES", "COUNT", "BLOCK")
        restore_kernel[part.grid](part.of(now), part.of(then_), go, **places, num_warps=WARPS)


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
    given = [p, m, v, average] if average else [p, m, v]
    plan = plan_of(given, [g], step_count.shape)
    walked = [plan.walked(tensors) for tensors in given]
    p_, m_, v_, *e_ = walked
    g_ = plan.laid_out(0, g, p_)
    norm, scale = norms(g_, plan, step_count.shape, clip_norm)
    after = torch.empty_like(step_count)
    for k, part in enumerate(plan.launches):
        steps_kernel[part.grid](
            part.of(p_), part.of(g_), part.of(m_), part.of(v_), part.of(e_[0] if e_ else p_),
            step_count, lr.contiguous(), scale, scale if go is None else go, p_[0], after, 0,
            **part.constants, **rule_constants(rule, p_[0].dtype == torch.float64), DECAY=weight_decay,
            EMA=decay if e_ else 0.0, CLIPS=clip_norm is not None, IN_PLACE=True, GATED=go is not None,
            COUNTS=k == 0, num_warps=WARPS,
        )  # fmt: skip
    for i in plan.gathered:
        for tensors, used in zip(given, walked, strict=True):
            if used[i] is not tensors[i]:
                tensors[i].copy_(used[i])
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
    plan = plan_of([p], [g, m, v], step_count.shape, fresh=True)
    p_ = plan.walked(p)
    g_, m_, v_ = (plan.laid_out(k, tensors, p_) for k, tensors in enumerate((g, m, v)))
    out, after = p_[0].new_empty(3 * plan.room), torch.empty_like(step_count)
    for k, part in enumerate(plan.launches):
        steps_kernel[part.grid](
            part.of(p_), part.of(g_), part.of(m_), part.of(v_), part.of(p_),
            step_count, lr.contiguous(), lr, lr, out, after, plan.room,
            **part.constants, **rule_constants(rule, out.dtype == torch.float64), DECAY=weight_decay, EMA=0.0,
            CLIPS=False, IN_PLACE=False, GATED=False, COUNTS=k == 0, num_warps=WARPS,
        )  # fmt: skip
    return *results_of(out, plan, p_), after


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
    others = [p_bar, m_bar or p_bar, v_bar or p_bar, m, v]
    plan = plan_of([g], others, step_count.shape, fresh=True)
    g_ = plan.walked(g)
    bar, mb, vb, m_, v_ = (plan.laid_out(k, tensors, g_) for k, tensors in enumerate(others))
    out = g_[0].new_empty(3 * plan.room)
    for part in plan.launches:
        reverses_kernel[part.grid](
            part.of(bar), part.of(mb), part.of(vb), part.of(g_), part.of(m_), part.of(v_),
            step_count, lr.contiguous(), out, plan.room, **part.constants,
            **rule_constants(rule, out.dtype == torch.float64), MOMENTS=m_bar is not None, num_warps=WARPS,
        )  # fmt: skip
    return results_of(out, plan, g_)


def norms(g: Sequence[Tensor], plan: Plan, lead: torch.Size, clip_norm: float | None) -> tuple[Tensor, Tensor]:
    """(the norm of all g, the factor that scales it down to at most `clip_norm`), of every replica."""
    tiles = sum([part.grid[0] for part in plan.launches])
    squares = g[0].new_empty((lead.numel(), tiles))
    norm, scale = (g[0].new_empty(lead) for _ in range(2))
    before, wide = 0, squares.dtype == torch.float64
    for part in plan.launches:
        places = part.only("FIRST", "SIZES", "COUNT", "BLOCK")
        squares_kernel[part.grid](part.of(g), squares, tiles, before, **places, WIDE=wide, num_warps=WARPS)
        before += part.grid[0]
    norm_kernel[(lead.numel(),)](squares, norm, scale, tiles, CLIP=clip_norm or 0.0, WIDE=wide, BLOCK=1024)
    return norm, scale


def results_of(out: Tensor, plan: Plan, like: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The three results of every tensor, with its shape and order."""
    pairs = list(zip(like, plan.begins, strict=True))
    first, second, third = (
        [out.as_strided(x.shape, x.stride(), k * plan.room + s) for x, s in pairs] for k in range(3)
    )
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
