"""The differentiable Adam step in Triton, forward and reverse, each one pass over memory; `triton_lists.py` has the
steps of many tensors at once.

Arithmetic is float32, or float64 for float64 parameters.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from eblvm.kernels.adam_unroll.reference import Rule, corrections
from eblvm.kernels.runtime.triton_report import Variant

BLOCK = 1024


@triton.jit
def moments(g, m, v, B1: tl.constexpr, B2: tl.constexpr):
    return B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * (g * g)


@triton.jit
def step_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, rate_ptr, c2_ptr, p_to, m_to, v_to, size,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    at = replica * size + i
    rate, c2 = tl.load(rate_ptr + replica).to(real), tl.load(c2_ptr + replica).to(real)
    g = tl.load(g_ptr + at, mask=keep, other=0.0).to(real)
    m = tl.load(m_ptr + at, mask=keep, other=0.0).to(real)
    v = tl.load(v_ptr + at, mask=keep, other=0.0).to(real)
    m, v = moments(g, m, v, B1, B2)
    p = tl.load(p_ptr + at, mask=keep, other=0.0).to(real)
    p = p - rate * m / (tl.sqrt(v / c2 + EPS_ROOT) + EPS)
    tl.store(p_to + at, p, mask=keep)
    tl.store(m_to + at, m, mask=keep)
    tl.store(v_to + at, v, mask=keep)


@triton.jit
def reverse_kernel(
    p_bar_ptr, m_bar_ptr, v_bar_ptr, g_ptr, m_ptr, v_ptr, rate_ptr, c2_ptr, g_to, m_to, v_to, size,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, EPS_ROOT: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    real = tl.float64 if WIDE else tl.float32
    replica = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = i < size
    at = replica * size + i
    rate, c2 = tl.load(rate_ptr + replica).to(real), tl.load(c2_ptr + replica).to(real)
    g = tl.load(g_ptr + at, mask=keep, other=0.0).to(real)
    m = tl.load(m_ptr + at, mask=keep, other=0.0).to(real)
    v = tl.load(v_ptr + at, mask=keep, other=1.0).to(real)
    m, v = moments(g, m, v, B1, B2)
    root = tl.sqrt(v / c2 + EPS_ROOT)
    denominator = root + EPS
    pull = rate * tl.load(p_bar_ptr + at, mask=keep, other=0.0).to(real) / denominator
    m_bar = tl.load(m_bar_ptr + at, mask=keep, other=0.0).to(real) - pull
    v_bar = tl.load(v_bar_ptr + at, mask=keep, other=0.0).to(real) + pull * m / denominator / (2.0 * c2 * root)
    tl.store(g_to + at, (1 - B1) * m_bar + 2.0 * (1 - B2) * g * v_bar, mask=keep)
    tl.store(m_to + at, B1 * m_bar, mask=keep)
    tl.store(v_to + at, B2 * v_bar, mask=keep)


def step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule) -> tuple[Tensor, ...]:
    return _launch(step_kernel, (p, g, m, v), t, lr, rule)


def reverse(
    p_bar: Tensor, m_bar: Tensor, v_bar: Tensor, g: Tensor, m: Tensor, v: Tensor, t: Tensor, lr: Tensor, rule: Rule
) -> tuple[Tensor, ...]:
    return _launch(reverse_kernel, (p_bar, m_bar, v_bar, g, m, v), t, lr, rule)


def _launch(
    kernel: triton.JITFunction,
    inputs: tuple[Tensor, ...],
    t: Tensor,
    lr: Tensor,
    rule: Rule,
) -> tuple[Tensor, ...]:
    """The kernel's three results."""
    p = inputs[0]
    outputs = tuple(torch.empty(p.shape, dtype=p.dtype, device=p.device) for _ in range(3))
    if p.numel() == 0:
        return outputs
    rate, c2 = (c.contiguous() for c in corrections(t, lr, t.dim(), rule))
    size = p.numel() // t.numel()
    kernel[(triton.cdiv(size, BLOCK), t.numel())](
        *(x.contiguous() for x in inputs),
        rate,
        c2,
        *outputs,
        size,
        **_constants(rule),
        WIDE=p.dtype == torch.float64,
        BLOCK=BLOCK,
    )
    return outputs


def _constants(rule: Rule) -> dict[str, float]:
    """Constexprs, since a float argument of a kernel is float32."""
    return {"B1": rule.b1, "B2": rule.b2, "EPS": rule.eps, "EPS_ROOT": rule.eps_root}


def variants() -> list[Variant]:
    from eblvm.kernels.adam_unroll import triton_lists

    variants = triton_lists.variants()
    inputs = ("g_ptr", "m_ptr", "v_ptr", "rate_ptr", "c2_ptr")
    names = {
        "step": ("p_ptr", *inputs, "p_to", "m_to", "v_to"),
        "reverse": ("p_bar_ptr", "m_bar_ptr", "v_bar_ptr", *inputs, "g_to", "m_to", "v_to"),
    }
    for element in ("fp32", "fp64"):
        for name, kernel in (("step", step_kernel), ("reverse", reverse_kernel)):
            arguments = dict.fromkeys(names[name], f"*{element}") | {"size": 560 * 400}
            values = _constants(Rule()) | {"WIDE": element == "fp64", "BLOCK": BLOCK}
            variants.append(Variant(f"adam_unroll {name} {element}", kernel, arguments, values))
    return variants
