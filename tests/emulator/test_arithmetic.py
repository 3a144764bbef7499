"""Every arithmetic instruction against Python's integers, or numpy's correctly rounded floats."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.formats import bfloat16_to_float32, float32_to_bfloat16
from tests.emulator.written import apply

TYPES = {f"{k}{bits}": np.dtype(f"{'u' if k == 'u' else ''}int{bits}") for k in "us" for bits in (16, 32, 64)}


def integers(kind: str, seed: int) -> np.ndarray:
    """Both ends, zero, one and numbers of all lengths."""
    dtype = TYPES[kind]
    info, generator = np.iinfo(dtype), random.Random(seed)
    numbers = [0, 1, 2, info.max, info.min, info.max - 1]
    while len(numbers) < 64:
        number = generator.getrandbits(generator.randrange(1, info.bits + 1))
        numbers.append(number if number <= info.max else number - 2**info.bits)
    generator.shuffle(numbers)
    return np.array(numbers, dtype)


def wrapped(number: int, kind: str) -> int:
    bits = TYPES[kind].itemsize * 8
    number &= 2**bits - 1
    return number - 2**bits if kind[0] == "s" and number >> bits - 1 else number


def towards_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted_right(a: int, n: int) -> int:
    return a >> min(n, 64)


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
    "div": towards_zero,
    "rem": lambda a, b: a - towards_zero(a, b) * b,
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", BINARY)
def test_integers(name: str, kind: str) -> None:
    a, b = integers(kind, 1), integers(kind, 2)
    if name in ("div", "rem"):
        b[b == 0] = 7
    got = apply(f"{name}.{kind} $d, $a, $b;", TYPES[kind], a, b)
    assert got.tolist() == [wrapped(BINARY[name](x, y), kind) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("kind", TYPES)
def test_upper_half_of_a_product(kind: str) -> None:
    a, b = integers(kind, 1), integers(kind, 2)
    bits = TYPES[kind].itemsize * 8
    got = apply(f"mul.hi.{kind} $d, $a, $b;", TYPES[kind], a, b)
    assert got.tolist() == [wrapped(x * y >> bits, kind) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind: str) -> None:
    to = f"{kind[0]}{2 * int(kind[1:])}"
    a, b, c = integers(kind, 1), integers(kind, 2), integers(to, 3)
    rows = list(zip(a.tolist(), b.tolist(), c.tolist(), strict=True))
    assert apply(f"mul.wide.{kind} $d, $a, $b;", TYPES[to], a, b).tolist() == [x * y for x, y, _ in rows]
    got = apply(f"mad.wide.{kind} $d, $a, $b, $c;", TYPES[to], a, b, c)
    assert got.tolist() == [wrapped(x * y + z, to) for x, y, z in rows]


@pytest.mark.parametrize("kind", ["u32", "s32", "s64", "u64"])
def test_shifts(kind: str) -> None:
    bits = TYPES[kind].itemsize * 8
    a, n = integers(kind, 1), np.arange(64, dtype=np.uint32) * 3 % (bits + 9)
    rows = list(zip(a.tolist(), n.tolist(), strict=True))
    assert apply(f"shr.{kind} $d, $a, $b;", TYPES[kind], a, n).tolist() == [shifted_right(x, k) for x, k in rows]
    left = apply(f"shl.b{bits} $d, $a, $b;", TYPES[kind], a, n)
    assert left.tolist() == [wrapped(x << k, kind) if k < bits else 0 for x, k in rows]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits = TYPES[kind].itemsize * 8
    a = integers(kind, 1)
    start, length = (np.random.default_rng(k).integers(0, bits + 5, 64).astype(np.uint32) for k in (1, 2))

    def field(x: int, b: int, c: int) -> int:
        """The PTX manual's own definition."""
        x &= 2**bits - 1
        sign = 0 if kind[0] == "u" or c == 0 else x >> min(b + c - 1, bits - 1) & 1
        digits = [x >> b + k & 1 if k < c and b + k < bits else sign for k in range(bits)]
        return wrapped(sum(d << k for k, d in enumerate(digits)), kind)

    got = apply(f"bfe.{kind} $d, $a, $b, $c;", TYPES[kind], a, start, length)
    expected = [field(*row) for row in zip(a.tolist(), start.tolist(), length.tolist(), strict=True)]
    assert got.tolist() == expected


@pytest.mark.parametrize("name", ["add", "min", "max"])
def test_two_integers_in_a_register(name: str) -> None:
    a, b = integers("s16", 1), integers("s16", 2)
    got = apply(f"{name}.s16x2 $d, $a, $b;", np.uint32, a.view(np.uint32), b.view(np.uint32))
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    assert got.view(np.int16).tolist() == [wrapped(BINARY[name](x, y), "s16") for x, y in pairs]


def test_bytes_are_permuted() -> None:
    a, b = integers("u32", 1), integers("u32", 2)
    choice = np.random.default_rng(0).integers(0, 2**16, 64).astype(np.uint32)

    def permuted(x: int, y: int, c: int) -> int:
        data, out = x.to_bytes(4, "little") + y.to_bytes(4, "little"), []
        for k in range(4):
            n = c >> 4 * k & 15
            out.append(data[n & 7] if n < 8 else 255 * (data[n & 7] >> 7))
        return int.from_bytes(bytes(out), "little")

    got = apply("prmt.b32 $d, $a, $b, $c;", np.uint32, a, b, choice)
    assert got.tolist() == [permuted(*row) for row in zip(a.tolist(), b.tolist(), choice.tolist(), strict=True)]


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0xFF])
def test_functions_of_three_bits(table: int) -> None:
    a, b, c = (integers("u32", k) for k in (1, 2, 3))

    def looked_up(x: int, y: int, z: int) -> int:
        bits = [table >> ((x >> k & 1) * 4 + (y >> k & 1) * 2 + (z >> k & 1)) & 1 for k in range(32)]
        return sum(bit << k for k, bit in enumerate(bits))

    got = apply(f"lop3.b32 $d, $a, $b, $c, {table:#x};", np.uint32, a, b, c)
    assert got.tolist() == [looked_up(*row) for row in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]


@pytest.mark.parametrize("mode", ["l.wrap", "r.wrap", "l.clamp", "r.clamp"])
def test_funnel_shifts(mode: str) -> None:
    a, b, n = integers("u32", 1), integers("u32", 2), np.arange(64, dtype=np.uint32)

    def shifted(x: int, y: int, k: int) -> int:
        k = min(k, 32) if mode.endswith("clamp") else k & 31
        both = x | y << 32
        return (both << k >> 32 if mode[0] == "l" else both >> k) & 2**32 - 1

    got = apply(f"shf.{mode}.b32 $d, $a, $b, $c;", np.uint32, a, b, n)
    assert got.tolist() == [shifted(*row) for row in zip(a.tolist(), b.tolist(), n.tolist(), strict=True)]


def test_bits_are_counted() -> None:
    a = integers("u32", 1)
    assert apply("popc.b32 $d, $a;", np.uint32, a).tolist() == [n.bit_count() for n in a.tolist()]
    assert apply("clz.b32 $d, $a;", np.uint32, a).tolist() == [32 - n.bit_length() for n in a.tolist()]
    assert apply("brev.b32 $d, $a;", np.uint32, a).tolist() == [int(f"{n:032b}"[::-1], 2) for n in a.tolist()]


def floats(dtype: type, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -3e-41, 3.4e38]
    numbers = np.array([*special, *(generator.normal(size=54) * 10.0 ** generator.integers(-20, 20, 54))], dtype)
    return generator.permutation(numbers)


def same(got: np.ndarray, expected: np.ndarray) -> None:
    """Bit for bit, but for the bits of a NaN."""
    word = f"u{got.itemsize}"
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got.view(word)[~nan], expected.view(word)[~nan])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["add.rn", "sub.rn", "mul.rn", "div.rn"])
def test_floats(name: str, dtype: type) -> None:
    a, b = floats(dtype, 1), floats(dtype, 2)
    function = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name[:3]]
    with np.errstate(all="ignore"):
        same(apply(f"{name}.f{8 * a.itemsize} $d, $a, $b;", dtype, a, b), function(a, b))


def test_fma_rounds_once() -> None:
    a, b, c = (np.random.default_rng(k).normal(size=64).astype(np.float32) for k in (1, 2, 3))
    rows = zip(*(map(Fraction, x.tolist()) for x in (a, b, c)), strict=True)
    exact = [x * y + z for x, y, z in rows]
    got = apply("fma.rn.f32 $d, $a, $b, $c;", np.float32, a, b, c)
    for number, value in zip(got, exact, strict=True):
        half = Fraction(float(np.spacing(np.abs(number)))) / 2
        assert abs(Fraction(float(number)) - value) <= half
    assert (got != a * b + c).any()  # twice rounded is another number


def test_subnormals_are_flushed_where_the_instruction_says_so() -> None:
    a, b = np.array([1e-40, -1e-40, 1e-30, 2.0], np.float32), np.array([1.0, 1.0, 1e-10, 3.0], np.float32)
    assert apply("mul.rn.f32 $d, $a, $b;", np.float32, a, b)[:3].all()
    got = apply("mul.rn.ftz.f32 $d, $a, $b;", np.float32, a, b)
    assert got.tolist() == [0.0, 0.0, 0.0, 6.0]
    assert np.signbit(got).tolist() == [False, True, False, False]


def test_a_number_wins_against_nan_in_min_and_max() -> None:
    a, b = np.array([np.nan, 1, 2, np.nan], np.float32), np.array([1, np.nan, 3, np.nan], np.float32)
    assert apply("min.f32 $d, $a, $b;", np.float32, a, b)[:3].tolist() == [1, 1, 2]
    assert apply("max.f32 $d, $a, $b;", np.float32, a, b)[:3].tolist() == [1, 1, 3]
    assert np.isnan(apply("max.NaN.f32 $d, $a, $b;", np.float32, a, b)).tolist() == [True, True, False, True]


UNARY = {
    "neg.f32": np.negative,
    "abs.f32": np.abs,
    "sqrt.rn.f32": np.sqrt,
    "rcp.rn.f32": lambda x: np.float32(1) / x,
    "ex2.approx.f32": lambda x: np.exp2(x.astype(np.float64)).astype(np.float32),
    "lg2.approx.f32": lambda x: np.log2(x.astype(np.float64)).astype(np.float32),
    "rsqrt.approx.f32": lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(np.float32),
    "tanh.approx.f32": lambda x: np.tanh(x.astype(np.float64)).astype(np.float32),
}


@pytest.mark.parametrize("name", UNARY)
def test_functions(name: str) -> None:
    a = floats(np.float32, 1)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(apply(f"{name} $d, $a;", np.float32, a), UNARY[name](a), rtol=3e-7)


ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


@pytest.mark.parametrize("name", [*ORDERED, *(f"{name}u" for name in ORDERED), "nan", "num"])
def test_comparisons_of_floats(name: str) -> None:
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    b[::3] = a[::3]

    def holds(x: float, y: float) -> bool:
        unordered = math.isnan(x) or math.isnan(y)
        if name in ("nan", "num"):
            return unordered == (name == "nan")
        return name.endswith("u") if unordered else eval(f"x {ORDERED[name[:2]]} y")

    got = apply(f"setp.{name}.f32 %p1, $a, $b; selp.b32 $d, 1, 0, %p1;", np.uint32, a, b)
    assert got.tolist() == [holds(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["u32", "s32", "s64"])
def test_comparisons_of_integers_and_two_results(kind: str) -> None:
    a, b = integers(kind, 1), integers(kind, 2)
    text = f"setp.gt.{kind} %p3, $a, 5; setp.lt.and.{kind} %p1|%p2, $a, $b, %p3;"
    rows = list(zip(a.tolist(), b.tolist(), strict=True))
    got = apply(text + "selp.b32 $d, 1, 0, %p1;", np.uint32, a, b)
    assert got.tolist() == [x < y and x > 5 for x, y in rows]
    got = apply(text + "selp.b32 $d, 1, 0, %p2;", np.uint32, a, b)
    assert got.tolist() == [not x < y and x > 5 for x, y in rows]


def test_registers_are_packed_and_unpacked() -> None:
    a, b = integers("u32", 1), integers("u32", 2)
    both = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    assert apply("mov.b64 $d, {$a, $b};", np.uint64, a, b).tolist() == both.tolist()
    assert apply("mov.b64 {_, $d}, $a;", np.uint32, both).tolist() == b.tolist()
    assert apply("mov.b32 {%rs1, %rs2}, $a; mov.b32 $d, {%rs2, %rs1};", np.uint32, a).tolist() == [
        n >> 16 | (n & 0xFFFF) << 16 for n in a.tolist()
    ]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_two_floats_in_a_register(name: str) -> None:
    """float32 of compute capability 10, and bfloat16."""
    a, b, c = (np.random.default_rng(k).normal(size=(64, 2)).astype(np.float32) for k in (1, 2, 3))

    def function(x, y, z):
        fused = (x * y.astype(np.float64) + z).astype(np.float32)
        return {"add": x + y, "sub": x - y, "mul": x * y, "fma": fused}[name]

    third = ", $c" if name == "fma" else ""
    words = [x.reshape(-1).view(np.uint64) for x in (a, b, c)]
    got = apply(f"{name}.rn.f32x2 $d, $a, $b{third};", np.uint64, *words[: 3 if third else 2])
    np.testing.assert_array_equal(got.view(np.float32).reshape(64, 2), function(a, b, c))
    a, b, c = (float32_to_bfloat16(x) for x in (a, b, c))
    pairs = [x.reshape(-1).view(np.uint32) for x in (a, b, c)]
    got = apply(f"{name}.rn.bf16x2 $d, $a, $b{third};", np.uint32, *pairs[: 3 if third else 2])
    expected = float32_to_bfloat16(function(*(bfloat16_to_float32(x) for x in (a, b, c))))
    np.testing.assert_array_equal(got.view(np.uint16).reshape(64, 2), expected)
