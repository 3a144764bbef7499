"""Conversions against numpy, `struct` and, for bfloat16, torch."""

import numpy as np
import pytest
import torch

from tests.emulator.written import apply

NUMBERS = np.array(
    [0.0, -0.0, 1.5, -1.5, 2.5, -2.5, 0.49, 1e9, -1e9, 3e9, -3e9, 1e20, -1e20, np.inf, -np.inf, np.nan], np.float32
)
ROUNDED = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.mark.parametrize("kind", ["s32", "u32", "s64"])
@pytest.mark.parametrize("mode", ROUNDED)
def test_floats_to_integers_stop_at_the_ends(mode: str, kind: str) -> None:
    dtype = np.dtype(f"{'u' if kind[0] == 'u' else ''}int{kind[1:]}")
    info = np.iinfo(dtype)
    whole = [0 if np.isnan(x) else x for x in ROUNDED[mode](NUMBERS.astype(np.float64)).tolist()]
    expected = [int(x) if info.min <= x <= info.max else info.max if x > 0 else info.min for x in whole]
    assert apply(f"cvt.{mode}.{kind}.f32 $d, $a;", dtype.type, NUMBERS).tolist() == expected


WIDTHS = "u64.u32 s64.s32 u32.u64 s32.s64 u16.u32 u32.u16 s32.s16".split()


@pytest.mark.parametrize(("to", "of"), [pair.split(".") for pair in WIDTHS])
def test_integers_are_extended_or_cut(to: str, of: str) -> None:
    source, target = (np.dtype(f"{'u' if k[0] == 'u' else ''}int{k[1:]}") for k in (of, to))
    a = np.random.default_rng(0).integers(0, 2**16, 64).astype(np.uint64) * np.uint64(0x0001000300050007)
    a = a.astype(source)
    np.testing.assert_array_equal(apply(f"cvt.{to}.{of} $d, $a;", target.type, a), a.astype(target))


@pytest.mark.parametrize("kind", ["s32", "u32", "s64", "u64"])
def test_integers_to_float32_round_to_the_nearest(kind: str) -> None:
    dtype = np.dtype(f"{'u' if kind[0] == 'u' else ''}int{kind[1:]}")
    a = np.array([0, 1, 2**24 + 1, 2**24 + 3, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    got = apply(f"cvt.rn.f32.{kind} $d, $a;", np.float32, a)
    assert got.tolist() == torch.tensor(a.astype(np.float64)).float().tolist()


def test_float64_to_float32_and_back() -> None:
    a = np.random.default_rng(0).normal(size=64)
    np.testing.assert_array_equal(apply("cvt.rn.f32.f64 $d, $a;", np.float32, a), a.astype(np.float32))
    single = a.astype(np.float32)
    np.testing.assert_array_equal(apply("cvt.f64.f32 $d, $a;", np.float64, single), single.astype(np.float64))


def test_bfloat16_is_that_of_torch() -> None:
    a = np.concatenate([NUMBERS[:15], np.random.default_rng(0).normal(size=49).astype(np.float32)])
    expected = torch.from_numpy(a).bfloat16()
    words = expected.view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(apply("cvt.rn.bf16.f32 $d, $a;", np.uint16, a), words)
    np.testing.assert_array_equal(apply("cvt.f32.bf16 $d, $a;", np.float32, words), expected.float().numpy())
    pairs = apply("cvt.rn.bf16x2.f32 $d, $a, $b;", np.uint32, a, a[::-1].copy())
    np.testing.assert_array_equal(pairs, words.astype(np.uint32) << np.uint32(16) | words[::-1])


def test_float16_is_that_of_numpy() -> None:
    a = np.random.default_rng(0).normal(size=64).astype(np.float32)
    half = a.astype(np.float16)
    np.testing.assert_array_equal(apply("cvt.rn.f16.f32 $d, $a;", np.uint16, a), half.view(np.uint16))
    got = apply("cvt.f32.f16 $d, $a;", np.float32, half.view(np.uint16))
    np.testing.assert_array_equal(got, half.astype(np.float32))


def test_tf32_keeps_ten_bits_and_rounds_ties_away() -> None:
    a = np.array([1 + 2**-11, 1 + 2**-11 - 2**-20, 1 + 3 * 2**-11, -1 - 2**-11], np.float32)
    expected = np.array([1 + 2**-10, 1, 1 + 2**-9, -1 - 2**-10], np.float32)
    np.testing.assert_array_equal(apply("cvt.rna.tf32.f32 $d, $a;", np.float32, a), expected)
