"""Products of tiles against numpy, with the layouts of fragments written out from the PTX manual, thread by thread."""

import numpy as np
import pytest
import torch

from tests.emulator.formats import Array
from tests.emulator.written import emulate

# (rows, depth, numbers of a register) of mma.m{rows}n8k{depth}.
SHAPES = {
    ("bf16", 16, 16): 2,
    ("bf16", 16, 8): 2,
    ("f16", 16, 16): 2,
    ("tf32", 16, 8): 1,
    ("tf32", 16, 4): 1,
    ("f64", 8, 4): 1,
    ("f64", 16, 8): 1,
    ("f64", 16, 16): 1,
}


def rounded(numbers: Array, kind: str) -> Array:
    """To numbers that the type has."""
    if kind == "f64":
        return numbers
    if kind == "tf32":
        return (numbers.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return torch.from_numpy(numbers).to({"bf16": torch.bfloat16, "f16": torch.float16}[kind]).float().numpy()


def words(numbers: Array, kind: str) -> Array:
    """The registers of numbers [threads, registers, numbers of a register]."""
    if kind in ("bf16", "f16"):
        half = torch.from_numpy(numbers.astype(np.float32)).to({"bf16": torch.bfloat16, "f16": torch.float16}[kind])
        return np.ascontiguousarray(half.view(torch.int16).numpy()).view(np.uint32)[..., 0]
    return np.ascontiguousarray(numbers[..., 0].astype(np.float64 if kind == "f64" else np.float32))


def fragment_a(a: Array, per: int) -> Array:
    """Registers go down the rows in steps of 8, then along the columns in steps of four threads' numbers."""
    rows, depth = a.shape
    out = np.zeros((32, rows // 8 * depth // (4 * per), per))
    for thread in range(32):
        for register in range(out.shape[1]):
            for k in range(per):
                row = thread // 4 + 8 * (register % (rows // 8))
                out[thread, register, k] = a[row, thread % 4 * per + k + 4 * per * (register // (rows // 8))]
    return out


def fragment_b(b: Array, per: int) -> Array:
    out = np.zeros((32, len(b) // (4 * per), per))
    for thread in range(32):
        for register in range(out.shape[1]):
            for k in range(per):
                out[thread, register, k] = b[thread % 4 * per + k + 4 * per * register, thread // 4]
    return out


def fragment_c(c: Array) -> Array:
    out = np.zeros((32, len(c) // 4))
    for thread in range(32):
        for register in range(out.shape[1]):
            out[thread, register] = c[thread // 4 + 8 * (register // 2), 2 * (thread % 4) + register % 2]
    return out


def load(names: list[str], pointer: int, scratch: int, bits: int) -> str:
    size = bits // 8
    lines = [f"mad.wide.u32 %rd{scratch}, %r0, {size * len(names)}, %rd{pointer};"]
    lines += [f"ld.global.b{bits} {name}, [%rd{scratch}+{size * k}];" for k, name in enumerate(names)]
    return "\n".join(lines)


@pytest.mark.parametrize(("kind", "rows", "depth"), SHAPES)
def test_products_of_a_warp(kind: str, rows: int, depth: int) -> None:
    per, generator = SHAPES[kind, rows, depth], np.random.default_rng(rows + depth)
    a, b = (rounded(generator.normal(size=shape), kind) for shape in ((rows, depth), (depth, 8)))
    c = generator.normal(size=(rows, 8)).astype(np.float64 if kind == "f64" else np.float32)
    A, B, C = words(fragment_a(a, per), kind), words(fragment_b(b, per), kind), fragment_c(c).astype(c.dtype)
    D = np.zeros_like(C)
    bits, r = (64, "%rd") if kind == "f64" else (32, "%r")
    names = {
        letter: [f"{r}{40 + 10 * k + n}" for n in range(words_.shape[1])]
        for k, (letter, words_) in enumerate(zip("abcd", (A, B, C, D), strict=True))
    }
    to = "f64" if kind == "f64" else "f32"
    body = [load(names[k], i, 20 + i, bits) for i, k in enumerate("abc")]
    groups = ", ".join("{" + ", ".join(names[k]) + "}" for k in "dabc")
    body.append(f"mma.sync.aligned.m{rows}n8k{depth}.row.col.{to}.{kind}.{kind}.{to} {groups};")
    body.append(f"mad.wide.u32 %rd30, %r0, {D.itemsize * D.shape[1]}, %rd3;")
    body += [f"st.global.b{bits} [%rd30+{D.itemsize * k}], {name};" for k, name in enumerate(names["d"])]
    launch = emulate("\n".join(body), A, B, C, D)
    assert not launch.problems
    np.testing.assert_allclose(D, fragment_c(a.astype(np.float64) @ b + c), rtol=1e-6 if to == "f32" else 1e-14)
