"""Products, shifts and bit fields of integers; `mul` and `mad` are also those of floats."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import FORMATS, Array, is_float
from tests.emulator.instructions.arithmetic import elementwise, fused, mixed
from tests.emulator.parser import Constant, Instruction

if TYPE_CHECKING:
    from tests.emulator.machine import Machine, Run


def wide(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def high_half(kind: str) -> Callable[[Array, Array], Array]:
    """The upper half of a product."""
    bits = FORMATS[kind].bits
    if bits < 64:
        double = np.dtype(f"{'u' if kind[0] == 'u' else ''}int{2 * bits}").type
        return lambda a, b: ((a.astype(double) * b.astype(double)) >> double(bits)).astype(a.dtype)
    exact = np.vectorize(lambda a, b: int(a) * int(b) >> 64, otypes=[np.int64 if kind[0] == "s" else np.uint64])
    return exact


def multiply(i: Instruction, m: "Machine") -> "Run":
    """d = a b: its lower half, its upper half, or all of it."""
    if is_float(i.type):
        return mixed(np.multiply, i, m)
    if i.has("wide"):
        return _wide(i, m)
    return elementwise(high_half(i.type) if i.has("hi") else np.multiply, i, m)


def multiply_add(i: Instruction, m: "Machine") -> "Run":
    if is_float(i.type):
        return fused(i, m)
    if i.has("wide"):
        return _wide(i, m)
    product = high_half(i.type) if i.has("hi") else np.multiply
    return elementwise(lambda a, b, c: product(a, b) + c, i, m)


def _wide(i: Instruction, m: "Machine") -> "Run":
    """d = a b, or a b + c, in twice the bits of a and b."""
    to = wide(i.type)
    a, b = (m.reader(o, i.type) for o in i.operands[1:3])
    c = m.reader(i.operands[3] if len(i.operands) > 3 else Constant("0"), to)
    write, dtype = m.writer(i.operands[0], to), c().dtype if len(i.operands) < 4 else None
    dtype = dtype or np.dtype(f"{'u' if to[0] == 'u' else ''}int{to[1:]}")
    return lambda mask: write(a().astype(dtype) * b().astype(dtype) + c(), mask)


def shift(i: Instruction, m: "Machine", *, left: bool) -> "Run":
    """By any number of bits: from the size of the type on nothing is left, or the sign."""
    kind = i.type.replace("b", "u")
    bits = FORMATS[kind].bits
    value, by, write = m.reader(i.operands[1], kind), m.reader(i.operands[2], "u32"), m.writer(i.operands[0], kind)

    def run(mask: Any) -> None:
        a, n = value(), by()
        within = np.minimum(n, np.uint32(bits - 1)).astype(a.dtype)
        shifted = a << within if left else a >> within
        write(shifted if kind[0] == "s" else np.where(n < bits, shifted, a.dtype.type(0)), mask)

    return run


def extract(i: Instruction, m: "Machine") -> "Run":
    """Bits c of a from bit b on; signed types repeat the field's highest bit."""
    bits = FORMATS[i.type].bits
    unsigned = f"u{bits}"
    value, write = m.reader(i.operands[1], unsigned), m.writer(i.operands[0], unsigned)
    start, length = (m.reader(o, "u32") for o in i.operands[2:4])

    def run(mask: Any) -> None:
        a, b, c = np.broadcast_arrays(value(), start() & np.uint32(255), length() & np.uint32(255))
        word, all_bits, highest = a.dtype.type, np.uint32(bits), np.uint32(bits - 1)
        there = np.minimum(c, all_bits - np.minimum(b, all_bits))  # of the field's bits
        inside = word(2**bits - 1) >> np.minimum(all_bits - there, highest).astype(word)
        inside = np.where(there == 0, word(0), inside)
        field = a >> np.minimum(b, highest).astype(word) & inside
        if i.type[0] == "s":
            last = np.minimum(b + c - np.uint32(1), highest).astype(word)
            negative = (c > 0) & (a >> last & word(1) == 1)
            field = np.where(negative, field | ~inside, field)
        write(field, mask)

    return run


def insert(i: Instruction, m: "Machine") -> "Run":
    """b with its bits from c on, d of them, replaced by the lowest of a."""
    kind = f"u{FORMATS[i.type].bits}"
    a, b = (m.reader(o, kind) for o in i.operands[1:3])
    start, length = (m.reader(o, "u32") for o in i.operands[3:5])
    write = m.writer(i.operands[0], kind)

    def run(mask: Any) -> None:
        word = b().dtype.type
        field = ((word(1) << length().astype(word)) - word(1)) << start().astype(word)
        write((a() << start().astype(word)) & field | b() & ~field, mask)

    return run


def permute(i: Instruction, m: "Machine") -> "Run":
    """Each of four bytes chosen from the eight of b:a; bit 3 of a choice repeats the byte's sign."""
    a, b, c = (m.reader(o, "u32") for o in i.operands[1:4])
    write = m.writer(i.operands[0], "u32")

    def run(mask: Any) -> None:
        both = a().astype(np.uint64) | b().astype(np.uint64) << np.uint64(32)
        result, choices = np.zeros(1, np.uint64), c().astype(np.uint64)
        for k in range(4):
            choice = choices >> np.uint64(4 * k) & np.uint64(15)
            byte = both >> (choice & np.uint64(7)) * np.uint64(8) & np.uint64(255)
            sign = np.where(byte > 127, np.uint64(255), np.uint64(0))
            result = result | np.where(choice > 7, sign, byte) << np.uint64(8 * k)
        write(result.astype(np.uint32), mask)

    return run


def logic(i: Instruction, m: "Machine") -> "Run":
    """Any function of three bits; bit 4 a + 2 b + c of the table is its value."""
    table = m.reader(i.operands[4], "u32")()[0]

    def look_up(a: Array, b: Array, c: Array) -> Array:
        terms = [(a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c) for k in range(8) if table >> k & 1]
        return np.bitwise_or.reduce(np.broadcast_arrays(*terms)) if terms else np.zeros_like(a)

    return elementwise(look_up, i._replace(operands=i.operands[:4]), m, "b32")


def funnel(i: Instruction, m: "Machine") -> "Run":
    """32 bits of b:a, shifted by c."""
    a, b, c = (m.reader(o, "u32") for o in i.operands[1:4])
    write = m.writer(i.operands[0], "u32")

    def run(mask: Any) -> None:
        both = a().astype(np.uint64) | b().astype(np.uint64) << np.uint64(32)
        by = np.minimum(c(), np.uint32(32)) if i.has("clamp") else c() & np.uint32(31)
        by = by.astype(np.uint64)
        shifted = both << by >> np.uint64(32) if i.has("l") else both >> by
        write((shifted & np.uint64(2**32 - 1)).astype(np.uint32), mask)

    return run


def count_bits(i: Instruction, m: "Machine") -> "Run":
    read, write = m.reader(i.operands[1], i.type), m.writer(i.operands[0], "u32")
    return lambda mask: write(np.bitwise_count(read()).astype(np.uint32), mask)


def leading_zeros(i: Instruction, m: "Machine") -> "Run":
    read, write, bits = m.reader(i.operands[1], i.type), m.writer(i.operands[0], "u32"), FORMATS[i.type].bits
    length = np.vectorize(lambda n: bits - int(n).bit_length(), otypes=[np.uint32])
    return lambda mask: write(length(read()), mask)


def reverse_bits(i: Instruction, m: "Machine") -> "Run":
    bits = FORMATS[i.type].bits
    reverse = np.vectorize(lambda n: int(f"{int(n):0{bits}b}"[::-1], 2), otypes=[np.uint64])
    return elementwise(lambda a: reverse(a).astype(a.dtype), i, m)


TABLE: dict[str, Any] = {
    "mul": multiply,
    "mad": multiply_add,
    "shl": partial(shift, left=True),
    "shr": partial(shift, left=False),
    "bfe": extract,
    "bfi": insert,
    "prmt": permute,
    "lop3": logic,
    "shf": funnel,
    "popc": count_bits,
    "clz": leading_zeros,
    "brev": reverse_bits,
}
