"""Arithmetic that is the same on numbers of every type, comparison, selection, and moves.

Approximate functions (`ex2.approx`, `div.full`) are rounded correctly here; `fma` of float32 is rounded from float64,
that of float64 twice.
"""

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import FORMATS, WORDS, Array, is_float, without_subnormals
from tests.emulator.parser import Constant, Group, Instruction

if TYPE_CHECKING:
    from tests.emulator.machine import Machine, Mask, Run


def elementwise(apply: Callable[..., Array], i: Instruction, m: "Machine", kind: str | None = None) -> "Run":
    """d = apply(a, b, ...), all of one type."""
    kind = kind or i.type
    reads, write = [m.reader(o, kind) for o in i.operands[1:]], m.writer(i.operands[0], kind)
    if i.has("ftz"):
        flushed = without_subnormals
        return lambda mask: write(flushed(apply(*(flushed(read()) for read in reads))), mask)
    if i.has("sat"):
        return lambda mask: write(np.clip(np.nan_to_num(apply(*(read() for read in reads))), 0, 1), mask)
    if len(reads) == 1:
        (one,) = reads
        return lambda mask: write(apply(one()), mask)
    if len(reads) == 2:
        one, two = reads
        return lambda mask: write(apply(one(), two()), mask)
    return lambda mask: write(apply(*(read() for read in reads)), mask)


def mixed(apply: Callable[[Array, Array], Array], i: Instruction, m: "Machine") -> "Run":
    """d = a + b; in `add.rn.f32.bf16` a is narrower than b and d."""
    if len(i.modifiers) < 2 or not is_float(i.modifiers[-2]):
        return elementwise(apply, i, m)
    to, of = i.modifiers[-2:]
    a, b, write = m.reader(i.operands[1], of), m.reader(i.operands[2], to), m.writer(i.operands[0], to)
    return lambda mask: write(apply(a().astype(np.float32), b()), mask)


def fused(i: Instruction, m: "Machine") -> "Run":
    """d = a b + c, rounded once."""
    if i.type == "f64":
        return elementwise(lambda a, b, c: a * b + c, i, m)
    dtype = FORMATS[i.type].numbers(np.zeros(2, WORDS[FORMATS[i.type].bits])).dtype
    return elementwise(lambda a, b, c: (a.astype(np.float64) * b + c).astype(dtype), i, m)


def divided(i: Instruction, m: "Machine") -> "Run":
    if is_float(i.type):
        return elementwise(np.divide, i, m)
    return elementwise(_quotient, i, m)


def remainder(i: Instruction, m: "Machine") -> "Run":
    return elementwise(lambda a, b: a - _quotient(a, b) * b, i, m)


def _quotient(a: Array, b: Array) -> Array:
    """Of integers, towards zero; all ones where b is zero."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    if a.dtype.kind == "u":
        quotient = a // safe
    else:
        below = a // safe
        quotient = below + ((below < 0) & (below * safe != a))
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


def smallest(i: Instruction, m: "Machine", *, largest: bool = False) -> "Run":
    """A NaN loses against a number, but for `.NaN`."""
    names = ("maximum", "fmax") if largest else ("minimum", "fmin")
    return elementwise(getattr(np, names[0] if i.has("NaN") or not is_float(i.type) else names[1]), i, m)


def bitwise(apply: Callable[..., Array], i: Instruction, m: "Machine") -> "Run":
    return elementwise(apply, i, m)


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}


def comparison(name: str, kind: str) -> Callable[[Array, Array], Array]:
    """With a NaN every ordered comparison is false; those with a u at the end (`geu`) are true."""

    def unordered(a: Array, b: Array) -> Array:
        return np.isnan(a) | np.isnan(b)

    if name == "nan":
        return unordered
    if name == "num":
        return lambda a, b: ~unordered(a, b)
    if name in COMPARISONS:
        compare = COMPARISONS[name]
        if name == "ne" and is_float(kind):
            return lambda a, b: compare(a, b) & ~unordered(a, b)
        return compare
    compare = COMPARISONS[name[:-1]]
    return lambda a, b: compare(a, b) | unordered(a, b)


COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def set_predicate(i: Instruction, m: "Machine") -> "Run":
    """p = a < b, or with a third operand that and another predicate; in p|q, q has the opposite comparison."""
    kind, compare = i.type, comparison(i.modifiers[0], i.type)
    results = i.operands[0].parts if isinstance(i.operands[0], Group) else (i.operands[0],)
    a, b = (m.reader(o, kind) for o in i.operands[1:3])
    writes = [m.writer(o, "pred") for o in results]
    if len(i.operands) == 3 and len(writes) == 1:
        (write,) = writes
        return lambda mask: write(compare(a(), b()), mask)
    combine = COMBINED[next((name for name in i.modifiers if name in COMBINED), "and")]
    other = m.reader(i.operands[3] if len(i.operands) > 3 else Constant("1"), "pred")

    def run(mask: "Mask") -> None:
        holds = compare(a(), b())
        for write, value in zip(writes, (holds, ~holds), strict=False):
            write(combine(value, other()), mask)

    return run


def select(i: Instruction, m: "Machine") -> "Run":
    a, b, choice = m.reader(i.operands[1], i.type), m.reader(i.operands[2], i.type), m.reader(i.operands[3], "pred")
    write = m.writer(i.operands[0], i.type)
    return lambda mask: write(np.where(choice(), a(), b()), mask)


def move(i: Instruction, m: "Machine") -> "Run":
    """Also between a register and its parts."""
    to, of = i.operands
    kind = i.type if i.type == "pred" else f"b{FORMATS[i.type].bits}"
    if isinstance(of, Group):
        part = f"b{FORMATS[kind].bits // len(of.parts)}"
        reads, write = [m.reader(o, part) for o in of.parts], m.writer(to, kind)
        return lambda mask: write(_packed([read() for read in reads], FORMATS[kind].bits), mask)
    if isinstance(to, Group):
        part = f"b{FORMATS[kind].bits // len(to.parts)}"
        read, writes = m.reader(of, kind), [m.writer(o, part) for o in to.parts]

        def unpack(mask: "Mask") -> None:
            parts = np.ascontiguousarray(read()).view(WORDS[FORMATS[part].bits]).reshape(-1, len(writes))
            for k, write in enumerate(writes):
                write(parts[:, k], mask)

        return unpack
    return elementwise(lambda a: a, i, m, kind)


def _packed(parts: list[Array], bits: int) -> Array:
    """The first part has the lowest bits."""
    columns = np.stack(np.broadcast_arrays(*parts), axis=-1)
    return np.ascontiguousarray(columns).view(WORDS[bits]).reshape(-1)


TABLE: dict[str, Any] = {
    "add": partial(mixed, np.add),
    "sub": partial(mixed, lambda a, b: a - b),
    "fma": fused,
    "div": divided,
    "rem": remainder,
    "min": smallest,
    "max": partial(smallest, largest=True),
    "neg": partial(elementwise, np.negative),
    "abs": partial(elementwise, np.abs),
    "and": partial(elementwise, np.bitwise_and),
    "or": partial(elementwise, np.bitwise_or),
    "xor": partial(elementwise, np.bitwise_xor),
    "not": partial(elementwise, np.bitwise_not),
    "copysign": partial(elementwise, lambda a, b: np.copysign(b, a)),
    "sqrt": partial(elementwise, np.sqrt),
    "rsqrt": partial(elementwise, lambda a: a.dtype.type(1) / np.sqrt(a)),
    "rcp": partial(elementwise, lambda a: a.dtype.type(1) / a),
    "ex2": partial(elementwise, np.exp2),
    "lg2": partial(elementwise, np.log2),
    "sin": partial(elementwise, np.sin),
    "cos": partial(elementwise, np.cos),
    "tanh": partial(elementwise, np.tanh),
    "setp": set_predicate,
    "selp": select,
    "mov": move,
}
