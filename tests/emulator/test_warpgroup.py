"""`wgmma` against numpy, its operands laid out in shared memory element by element."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulator.formats import Array, bfloat16_to_float32, float32_to_bfloat16
from tests.emulator.machine import Launch
from tests.emulator.written import emulate

ROWS, DEPTH, ACROSS = 64, 16, 16
HALF = 8192  # bytes of shared memory for each operand
ROW_BYTES = {0: 16, 3: 32, 2: 64, 1: 128}  # of a swizzled block, by its number in a descriptor


def k_major(swizzle: int) -> Callable[[int, int], int]:
    """Blocks of 8 rows; a row of a block has its depth together. Without a swizzle a block is 16 bytes wide."""
    row_bytes = ROW_BYTES[swizzle]

    def byte(n: int, k: int) -> int:
        chunk = k * 2 // 16
        if swizzle == 0:
            return n // 8 * 256 + chunk * 128 + n % 8 * 16 + k * 2 % 16
        # Row r of a block has its chunks in an order that r decides; rows of less than 128 bytes share an order.
        order = n % 8 * row_bytes // 128
        return n // 8 * 8 * row_bytes + n % 8 * row_bytes + (chunk ^ order) * 16 + k * 2 % 16

    return byte


def mn_major(swizzle: int) -> Callable[[int, int], int]:
    """Blocks of 8 depths; a row of a block has elements across together."""
    row_bytes = ROW_BYTES[swizzle]
    across = row_bytes // 2

    def byte(n: int, k: int) -> int:
        block = n // across * 2 + k // 8  # both depths of a block across, then the next one
        start = block * 8 * row_bytes
        chunk = n % across * 2 // 16
        return start + k % 8 * row_bytes + (chunk ^ k % 8 * row_bytes // 128) * 16 + n * 2 % 16

    return byte


def descriptor(start: int, swizzle: int, *, is_k_major: bool) -> int:
    """Leading and stride are byte offsets between blocks: PTX manual, "matrix descriptor"."""
    row_bytes = ROW_BYTES[swizzle]
    if is_k_major:
        leading, stride = (128, 256) if swizzle == 0 else (16, 8 * row_bytes)
    else:
        leading, stride = 16 * row_bytes, 8 * row_bytes
        if swizzle == 0:
            leading, stride = stride, leading
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62


def laid_out(matrix: Array, byte: Callable[[int, int], int]) -> Array:
    out = np.zeros(HALF // 2, np.uint16)
    for n in range(matrix.shape[0]):
        for k in range(matrix.shape[1]):
            out[byte(n, k) // 2] = matrix[n, k]
    return out


FILL = "\n".join(
    f"ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%rd10+{k}]; st.shared.v4.b32 [%r2+{k}], {{%r10, %r11, %r12, %r13}};"
    for k in range(0, 128, 16)
)
D = [f"%r{50 + k}" for k in range(8)]
ONES = " ".join(f"mov.b32 {name}, 0f3F800000;" for name in D)
STORES = " ".join(f"st.global.b32 [%rd12+{4 * k}], {name};" for k, name in enumerate(D))
WAIT = "wgmma.wait_group.sync.aligned 0;"


def product(
    swizzles: tuple[int, int] = (1, 1),
    k_majors: tuple[bool, bool] = (True, True),
    *,
    from_registers: bool = False,
    keep: int = -1,
    barrier: str = "bar.sync 0;",
    wait: str = WAIT,
) -> tuple[Launch, Array, Array]:
    """A launch of one warp group, d, and a b."""
    generator = np.random.default_rng(0)
    a, b = (float32_to_bfloat16(generator.normal(size=(n, DEPTH)).astype(np.float32)) for n in (ROWS, ACROSS))
    layouts = [k_major(s) if is_k else mn_major(s) for s, is_k in zip(swizzles, k_majors, strict=True)]
    shared = np.concatenate([laid_out(x, layout) for x, layout in zip((a, b), layouts, strict=True)])
    fragment = np.zeros((128, 4), np.uint32)
    for thread, register in np.ndindex(fragment.shape):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (register % 2)
        column = 2 * (thread % 4) + 8 * (register // 2)
        fragment[thread, register] = int(a[row, column]) | int(a[row, column + 1]) << 16
    bits = [
        descriptor(k * HALF, s, is_k_major=is_k) for k, (s, is_k) in enumerate(zip(swizzles, k_majors, strict=True))
    ]
    left = "{%r30, %r31, %r32, %r33}" if from_registers else "%rd20"
    transposed = [str(int(not is_k)) for is_k in k_majors][from_registers:]
    body = f"""
        shl.b32 %r2, %r0, 7;
        mad.wide.u32 %rd10, %r0, 128, %rd0;
        {FILL}
        {barrier}
        mov.b64 %rd20, {bits[0]};
        mov.b64 %rd21, {bits[1]};
        mov.pred %p1, {keep};
        mad.wide.u32 %rd11, %r0, 16, %rd1;
        ld.global.v4.b32 {{%r30, %r31, %r32, %r33}}, [%rd11];
        {ONES}
        wgmma.fence.sync.aligned;
        wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {{{", ".join(D)}}}, {left}, %rd21, %p1, 1, 1,
            {", ".join(transposed)};
        wgmma.commit_group.sync.aligned;
        {wait}
        mad.wide.u32 %rd12, %r0, 32, %rd2;
        {STORES}
    """
    d = np.zeros((128, 8), np.float32)
    launch = emulate(body, shared, fragment, d, threads=128, shared=2 * HALF)
    return launch, d, bfloat16_to_float32(a).astype(np.float64) @ bfloat16_to_float32(b).T


def fragment_of(product: Array) -> Array:
    out = np.zeros((128, 8))
    for thread, register in np.ndindex(out.shape):
        row = thread // 32 * 16 + thread % 32 // 4 + 8 * (register // 2 % 2)
        out[thread, register] = product[row, 8 * (register // 4) + 2 * (thread % 4) + register % 2]
    return out


@pytest.mark.parametrize("b_k_major", [True, False])
@pytest.mark.parametrize("a_k_major", [True, False])
@pytest.mark.parametrize("swizzle", ROW_BYTES)
def test_both_from_shared_memory(swizzle: int, a_k_major: bool, b_k_major: bool) -> None:
    launch, d, expected = product((swizzle, swizzle), (a_k_major, b_k_major))
    assert not launch.problems
    np.testing.assert_allclose(d, 1 + fragment_of(expected), rtol=1e-6)


@pytest.mark.parametrize("b_k_major", [True, False])
def test_a_from_registers(b_k_major: bool) -> None:
    launch, d, expected = product((1, 3), (True, b_k_major), from_registers=True, keep=0)
    assert not launch.problems
    np.testing.assert_allclose(d, fragment_of(expected), rtol=1e-6)


def test_a_result_is_not_read_before_its_wait() -> None:
    launch, *_ = product(wait="")
    assert "before the wait for its product" in "; ".join(launch.problems)
    launch, *_ = product(wait="wgmma.wait_group.sync.aligned 1;")
    assert "before the wait for its product" in "; ".join(launch.problems)


def test_operands_are_written_before_a_barrier() -> None:
    launch, *_ = product(barrier="")
    assert "race: read of what another thread writes, shared" in "; ".join(launch.problems)
