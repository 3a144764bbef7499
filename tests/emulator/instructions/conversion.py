"""Conversions between types."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import FORMATS, Array, float32_to_tf32, is_float, without_subnormals
from tests.emulator.instructions.arithmetic import elementwise
from tests.emulator.parser import Instruction, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.machine import Machine, Run

ROUNDED = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(i: Instruction, m: "Machine") -> "Run":
    to, of = i.modifiers[-2:]
    if to == "tf32":
        read, write = m.reader(i.operands[1], of), m.writer(i.operands[0], "b32")
        return lambda mask: write(float32_to_tf32(read()), mask)
    if to in ("bf16x2", "f16x2") and len(i.operands) == 3:  # the first source is the upper half
        upper, lower = (m.reader(o, of) for o in i.operands[1:])
        write = m.writer(i.operands[0], to)
        return lambda mask: write(np.stack(np.broadcast_arrays(lower(), upper()), -1), mask)
    if not is_float(to) and is_float(of) and not i.has(*ROUNDED):
        raise UnknownPtxError(i.opcode)
    read, write = m.reader(i.operands[1], of), m.writer(i.operands[0], to)
    convert = to_integer(i, to) if is_float(of) and not is_float(to) else to_number(i, to)
    return lambda mask: write(convert(read()), mask)


def to_integer(i: Instruction, to: str) -> Any:
    """Rounded as the instruction says; beyond the range its end, a NaN is zero."""
    rounded = next(round_ for name, round_ in ROUNDED.items() if i.has(name))
    dtype = FORMATS[to].numbers(np.zeros(1, f"u{FORMATS[to].bits // 8}")).dtype
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max

    def convert(a: Array) -> Array:
        whole = np.nan_to_num(rounded(a.astype(np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
        # The largest 64-bit integer is no float64: compare before converting.
        inside = np.where((whole > low) & (whole < high), whole, 0).astype(dtype)
        return np.where(whole >= high, dtype.type(high), np.where(whole <= low, dtype.type(low), inside))

    return convert


def to_number(i: Instruction, to: str) -> Any:
    dtype = np.float32 if to in ("f16", "bf16") else FORMATS[to].numbers(np.zeros(1, f"u{FORMATS[to].bits // 8}")).dtype
    rounded = next((round_ for name, round_ in ROUNDED.items() if i.has(name)), None)
    if rounded is not None and is_float(to):
        return lambda a: rounded(a).astype(dtype)
    if i.has("ftz"):
        return lambda a: without_subnormals(a.astype(dtype))
    if i.has("relu", "sat", "satfinite") or (i.has("rz", "rm", "rp") and is_float(to)):
        raise UnknownPtxError(i.opcode)
    return lambda a: a.astype(dtype)


TABLE: dict[str, Any] = {
    "cvt": convert,
    "cvta": lambda i, m: elementwise(lambda a: a, i, m, "u64"),  # all address spaces share one numbering here
}
