"""Positive controls: programs with a fault each, which the shadow must find, and the same without it."""

import numpy as np
import pytest

from tests.emulator.memory import MemoryFaultError
from tests.emulator.written import emulate

OWN = "mad.wide.u32 %rd10, %r0, 4, %rd0; mad.wide.u32 %rd11, %r0, 4, %rd1;"
SHARED = (
    "shl.b32 %r2, %r0, 2; st.shared.b32 [%r2], %r0; {barrier} xor.b32 %r3, %r2, {distance}; ld.shared.b32 %r4, [%r3];"
)


def array(n: int, dtype: type = np.uint32) -> np.ndarray:
    return np.arange(n).astype(dtype)


def problems(*arguments, **options) -> str:
    return "; ".join(emulate(*arguments, **options).problems)


def test_a_copy_has_no_problem() -> None:
    a, b = array(64), np.zeros(64, np.uint32)
    body = OWN + "ld.global.b32 %r5, [%rd10]; st.global.b32 [%rd11], %r5;"
    assert problems(body, a, b, threads=64, unwritten=[1]) == ""
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("access", ["ld.global.b32 %r5, [%rd10];", "st.global.b32 [%rd10], %r0;"])
def test_an_access_beyond_a_tensor_is_a_fault(access: str) -> None:
    """As where a mask was forgotten: 32 threads, 31 elements."""
    with pytest.raises(MemoryFaultError, match="out of bounds of every tensor"):
        emulate(OWN + access, array(31), array(32))
    guarded = "setp.lt.u32 %p1, %r0, 31; @%p1 " + access
    assert problems(OWN + guarded, array(31), array(32)) == ""


def test_an_access_beyond_shared_memory_is_a_fault() -> None:
    with pytest.raises(MemoryFaultError, match="out of bounds, shared"):
        emulate("shl.b32 %r2, %r0, 2; st.shared.b32 [%r2+4000], %r0;", array(1), shared=4096, threads=64)


@pytest.mark.parametrize("step", [4, 8, 16])
def test_a_misaligned_vector_is_a_fault(step: int) -> None:
    body = f"mad.wide.u32 %rd10, %r0, {step}, %rd0; ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%rd10];"
    if step == 16:
        assert problems(body, array(128)) == ""
    else:
        with pytest.raises(MemoryFaultError, match="misaligned access of 16 bytes"):
            emulate(body, array(128))


def test_a_read_of_what_nobody_wrote() -> None:
    body = OWN + "ld.global.b32 %r5, [%rd10];"
    assert "read of what nobody wrote, global" in problems(body, array(32), array(32), unwritten=[0])
    assert problems(OWN + "st.global.b32 [%rd10], %r0;" + body, array(32), array(32), unwritten=[0]) == ""
    assert "read of what nobody wrote, shared" in problems("ld.shared.b32 %r5, [global_smem+8];", array(1))


@pytest.mark.parametrize(
    ("barrier", "distance", "race"),
    [
        ("", 4, True),  # neighbours of a warp
        ("", 128, True),  # two warps
        ("bar.sync 0;", 4, False),
        ("bar.sync 0;", 128, False),
        ("bar.warp.sync -1;", 4, False),
        ("bar.warp.sync -1;", 128, True),
        ("", 0, False),  # its own
    ],
)
def test_a_barrier_is_missing_between_write_and_read(barrier: str, distance: int, race: bool) -> None:
    found = problems(SHARED.format(barrier=barrier, distance=distance), array(1), threads=64)
    assert ("race: read of what another thread writes, shared" in found) == race
    assert bool(found) == race


@pytest.mark.parametrize("distance", [4, 128])
def test_a_barrier_is_missing_between_read_and_write(distance: int) -> None:
    body = SHARED.format(barrier="bar.sync 0;", distance=distance)
    again = "st.shared.b32 [%r2], %r4;"
    assert "race: write to what another thread reads, shared" in problems(body + again, array(1), threads=64)
    assert problems(body + "bar.sync 0;" + again, array(1), threads=64) == ""


def test_readers_of_one_place_are_all_remembered() -> None:
    """The last one to read is the writer itself."""
    body = "st.shared.b32 [global_smem], %r1; bar.sync 0; ld.shared.b32 %r4, [global_smem]; setp.eq.u32 %p1, %r0, {k};"
    body += "{barrier} @%p1 st.shared.b32 [global_smem], 7;"
    for k in (0, 31, 63):
        assert "write to what another thread reads" in problems(body.format(k=k, barrier=""), array(1), threads=64)
        assert problems(body.format(k=k, barrier="bar.sync 0;"), array(1), threads=64) == ""


def test_threads_write_different_values_to_one_place() -> None:
    body = "st.global.b32 [%rd0], %r{};"
    assert "different values to one place" in problems(body.format(0), array(1))
    assert problems(body.format(1), array(1)) == ""


def test_two_programs_write_one_place() -> None:
    body = "mad.lo.u32 %r2, %r1, {}, %r0; mad.wide.u32 %rd10, %r2, 4, %rd0; st.global.b32 [%rd10], %r0;"
    assert "hazard between programs: write to what another thread writes" in problems(
        body.format(16), array(64), grid=2
    )
    assert problems(body.format(32), array(64), grid=2) == ""


@pytest.mark.parametrize("first", ["ld", "st"])
def test_one_program_reads_what_another_writes(first: str) -> None:
    """Whichever comes first in the emulator."""
    text = "setp.{}.u32 %p1, %r1, 0; @%p1 ld.global.b32 %r5, [%rd10]; @!%p1 st.global.b32 [%rd10], %r0;"
    found = problems(OWN + text.format("eq" if first == "ld" else "ne"), array(32), array(32), grid=2)
    assert "hazard between programs" in found


TICKET = """
    mad.lo.u32 %r2, %r1, 64, %r0;
    mad.wide.u32 %rd10, %r2, 4, %rd0;
    st.global.b32 [%rd10], %r0;
    {before}
    setp.eq.u32 %p1, %r0, 0;
    @%p1 atom.global.gpu.{order}.add.u32 %r3, [%rd1], 1;
    @%p1 st.shared.b32 [global_smem], %r3;
    bar.sync 0;
    ld.shared.b32 %r4, [global_smem];
    setp.ne.u32 %p2, %r4, 3;
    @%p2 ret;
    mov.b32 %r6, 0;
    mad.wide.u32 %rd11, %r0, 4, %rd0;
    ld.global.b32 %r5, [%rd11];
    add.u32 %r6, %r6, %r5;
    ld.global.b32 %r5, [%rd11+256];
    add.u32 %r6, %r6, %r5;
    ld.global.b32 %r5, [%rd11+512];
    add.u32 %r6, %r6, %r5;
    mad.wide.u32 %rd12, %r0, 4, %rd2;
    st.global.b32 [%rd12], %r6;
"""


@pytest.mark.parametrize(
    ("before", "order", "sound"),
    [("bar.sync 0;", "acq_rel", True), ("", "acq_rel", False), ("bar.sync 0;", "relaxed", False)],
)
def test_the_last_program_adds_the_parts(before: str, order: str, sound: bool) -> None:
    """A ticket orders programs if it is taken behind a barrier, with release and acquire."""
    ticket, total = np.zeros(1, np.uint32), np.zeros(64, np.uint32)
    launch = emulate(
        TICKET.format(before=before, order=order), array(256), ticket, total, grid=4, threads=64, unwritten=[0, 2]
    )
    assert (not launch.problems) == sound, launch.problems
    assert ticket[0] == 4
    assert total.tolist() == [3 * n for n in range(64)]


def test_asynchronous_copies_arrive_with_the_wait() -> None:
    body = """
        shl.b32 %r2, %r0, 4;
        mad.wide.u32 %rd10, %r0, 16, %rd0;
        setp.lt.u32 %p1, %r0, 20;
        selp.b32 %r9, 16, 0, %p1;
        cp.async.cg.shared.global [%r2], [%rd10], 0x10, %r9;
        cp.async.commit_group;
        {wait}
        ld.shared.b32 %r4, [%r2+4];
        mad.wide.u32 %rd11, %r0, 4, %rd1;
        st.global.b32 [%rd11], %r4;
    """
    a, out = array(80), np.zeros(32, np.uint32)
    assert problems(body.format(wait="cp.async.wait_group 0;"), a, out) == ""
    assert out.tolist() == [4 * n + 1 if n < 20 else 0 for n in range(32)]
    emulate(body.format(wait="cp.async.wait_group 1;"), a, out)
    assert out.tolist() == [2**32 - 1] * 32  # still on its way: what was there before
