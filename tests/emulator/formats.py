"""The types of PTX: how the bits of a register become numbers that numpy computes with, and back.

A value is an array of unsigned words of the register's size, one for each thread, or a single one that all share.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

WORDS: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


class Format(NamedTuple):
    bits: int
    numbers: Callable[[Array], Array]  # from words
    words: Callable[[Array], Array]  # from numbers, rounded to the format


def bfloat16_to_float32(words: Array) -> Array:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def float32_to_bfloat16(numbers: Array) -> Array:
    """Round to the nearest, ties to even; a NaN becomes the one of the PTX manual, 0x7fff."""
    bits = np.asarray(numbers, np.float32).view(np.uint32)
    even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return np.where(np.isnan(numbers), np.uint32(0x7FFF), even >> np.uint32(16)).astype(np.uint16)


def float32_to_tf32(numbers: Array) -> Array:
    """Round to 10 bits of mantissa, ties away from zero (`cvt.rna`)."""
    return (numbers.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)


def without_subnormals(numbers: Array) -> Array:
    """Replace float32 numbers below 2^-126 by zeros of their sign (`.ftz`)."""
    tiny = np.abs(numbers) < np.finfo(np.float32).smallest_normal
    return np.where(tiny, np.copysign(np.float32(0), numbers), numbers)


def _plain(bits: int, dtype: Any) -> Format:
    word = WORDS[bits]
    if dtype is word:
        return Format(bits, lambda words: words, lambda numbers: numbers)
    return Format(bits, lambda words: words.view(dtype), lambda numbers: numbers.view(word))


def _pair(half: Format) -> Format:
    """Two numbers in a register, on a last axis of their own."""
    word, whole = WORDS[half.bits], WORDS[2 * half.bits]

    def numbers(words: Array) -> Array:
        return half.numbers(np.ascontiguousarray(words).view(word)).reshape(-1, 2)

    def words(numbers: Array) -> Array:
        return np.ascontiguousarray(half.words(numbers)).view(whole).reshape(-1)

    return Format(2 * half.bits, numbers, words)


def _formats() -> dict[str, Format]:
    formats = {"pred": _plain(1, np.bool_)}
    for bits in (8, 16, 32, 64):
        formats |= {f"{kind}{bits}": _plain(bits, WORDS[bits]) for kind in "bu"}
        formats[f"s{bits}"] = _plain(bits, np.dtype(f"int{bits}").type)
    # float16 is computed in float32, which numpy rounds back.
    formats["f16"] = Format(
        16,
        lambda words: words.view(np.float16).astype(np.float32),
        lambda numbers: numbers.astype(np.float16).view(np.uint16),
    )
    formats["bf16"] = Format(16, bfloat16_to_float32, float32_to_bfloat16)
    formats |= {"f32": _plain(32, np.float32), "f64": _plain(64, np.float64)}
    return formats | {f"{name}x2": _pair(formats[name]) for name in ("f16", "bf16", "f32", "s16", "u16")}


FORMATS = _formats()


FLOATS = frozenset(name for name in FORMATS if name.removeprefix("b")[0] == "f")


def is_float(kind: str) -> bool:
    return kind in FLOATS


def constant(text: str, bits: int) -> Array:
    """Return the word of a literal: 0f and 0d have the bits of a float, others are integers."""
    if text[:2] in ("0f", "0F", "0d", "0D"):
        number = int(text[2:], 16)
        assert 4 * len(text[2:]) == bits, text
    else:
        number = int(text.rstrip("U"), 0)
    if bits == 1:
        return np.array([number != 0])
    return np.array([number & ((1 << bits) - 1)], dtype=WORDS[bits])
