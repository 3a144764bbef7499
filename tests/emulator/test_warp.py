"""What threads of a warp do together."""

import numpy as np
import pytest

from tests.emulator.written import apply, emulate

VALUES = (np.arange(64) * 7 + 3).astype(np.uint32)
LANE = np.arange(64) % 32


def exchanged(instruction: str) -> np.ndarray:
    return apply(instruction, np.uint32, VALUES)


@pytest.mark.parametrize("by", [1, 2, 4, 8, 16])
def test_butterfly(by: int) -> None:
    expected = VALUES[np.arange(64) ^ by]
    np.testing.assert_array_equal(exchanged(f"shfl.sync.bfly.b32 $d, $a, {by}, 31, -1;"), expected)


def test_up_and_down_stop_at_the_ends_of_a_segment() -> None:
    thread = np.arange(64)
    down = np.where(LANE % 8 + 3 <= 7, thread + 3, thread)
    np.testing.assert_array_equal(exchanged("shfl.sync.down.b32 $d, $a, 3, 0x1807, -1;"), VALUES[down])
    up = np.where(LANE % 8 >= 3, thread - 3, thread)
    np.testing.assert_array_equal(exchanged("shfl.sync.up.b32 $d, $a, 3, 0x1800, -1;"), VALUES[up])


def test_by_number_and_whether_the_other_is_in_the_segment() -> None:
    thread = np.arange(64)
    np.testing.assert_array_equal(exchanged("shfl.sync.idx.b32 $d, $a, 5, 31, -1;"), VALUES[thread // 32 * 32 + 5])
    inside = exchanged("shfl.sync.down.b32 %r90|%p1, $a, 30, 31, -1; selp.b32 $d, 1, 0, %p1;")
    np.testing.assert_array_equal(inside, LANE < 2)


@pytest.mark.parametrize(("name", "function"), [("add.u32", np.sum), ("max.u32", np.max), ("min.s32", np.min)])
def test_reductions(name: str, function) -> None:
    expected = np.repeat([function(VALUES[:32]), function(VALUES[32:])], 32)
    np.testing.assert_array_equal(exchanged(f"redux.sync.{name} $d, $a, -1;"), expected)


def test_votes() -> None:
    got = exchanged("setp.gt.u32 %p1, $a, 230; vote.sync.ballot.b32 $d, %p1, -1;")
    expected = [sum(int(v > 230) << k for k, v in enumerate(VALUES[w : w + 32].tolist())) for w in (0, 32)]
    np.testing.assert_array_equal(got, np.repeat(expected, 32))
    for name, function in (("any", np.any), ("all", np.all)):
        got = exchanged(f"setp.gt.u32 %p1, $a, 200; vote.sync.{name}.pred %p2, %p1, -1; selp.b32 $d, 1, 0, %p2;")
        np.testing.assert_array_equal(got, np.repeat([function(VALUES[:32] > 200), function(VALUES[32:] > 200)], 32))


def test_one_thread_is_elected() -> None:
    got = exchanged("elect.sync %r90|%p1, -1; selp.b32 $d, 1, 0, %p1;")
    np.testing.assert_array_equal(got, LANE == 0)


TILES = """
    and.b32 %r2, %r0, 31;
    shl.b32 %r3, %r2, 4;
    mad.lo.u32 %r4, %r0, 16, 0;
    mad.wide.u32 %rd10, %r0, 16, %rd0;
    ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%rd10];
    st.shared.v4.b32 [%r4], {%r10, %r11, %r12, %r13};
    bar.sync 0;
    ldmatrix.sync.aligned.m8n8.x4MODE.shared.b16 {%r20, %r21, %r22, %r23}, [%r4];
    mad.wide.u32 %rd11, %r0, 16, %rd1;
    st.global.v4.b32 [%rd11], {%r20, %r21, %r22, %r23};
    add.u32 %r5, %r4, 1024;
    stmatrix.sync.aligned.m8n8.x4MODE.shared.b16 [%r5], {%r20, %r21, %r22, %r23};
    bar.sync 0;
    ld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r5];
    mad.wide.u32 %rd12, %r0, 16, %rd2;
    st.global.v4.b32 [%rd12], {%r10, %r11, %r12, %r13};
"""


@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_to_registers_and_back(transposed: bool) -> None:
    rows = np.arange(2 * 4 * 8 * 8, dtype=np.uint16).reshape(2, 4, 8, 8)  # warps, tiles, rows, columns
    words, again = np.zeros((64, 4), np.uint32), np.zeros_like(rows)
    launch = emulate(TILES.replace("MODE", ".trans" if transposed else ""), rows.copy(), words, again, threads=64)
    assert not launch.problems
    tiles = rows.transpose(0, 1, 3, 2) if transposed else rows
    for thread in range(64):
        for tile in range(4):
            row, column = thread % 32 // 4, 2 * (thread % 4)
            low, high = tiles[thread // 32, tile, row, column : column + 2].tolist()
            assert words[thread, tile] == low | high << 16
    np.testing.assert_array_equal(again, rows)
