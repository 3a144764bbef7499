"""Threads that part and meet again, and the grid."""

import numpy as np

from tests.emulator.written import emulate

STORE = "mad.lo.u32 %r2, %r1, 64, %r0; mad.wide.u32 %rd10, %r2, 4, %rd0; st.global.b32 [%rd10], %r9;"


def test_each_thread_takes_its_own_number_of_turns() -> None:
    """The Collatz steps to one, of 128 numbers in two programs."""
    body = """
        mad.lo.u32 %r3, %r1, 64, %r0;
        add.u32 %r3, %r3, 1;
        mov.b32 %r9, 0;
    LOOP:
        setp.eq.u32 %p1, %r3, 1;
        @%p1 bra DONE;
        and.b32 %r4, %r3, 1;
        setp.eq.u32 %p2, %r4, 0;
        @%p2 bra EVEN;
        mad.lo.u32 %r3, %r3, 3, 1;
        bra.uni NEXT;
    EVEN:
        shr.u32 %r3, %r3, 1;
    NEXT:
        add.u32 %r9, %r9, 1;
        bra.uni LOOP;
    DONE:
    """

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    out = np.zeros(128, np.uint32)
    launch = emulate(body + STORE, out, grid=2, threads=64)
    assert out.tolist() == [steps(n) for n in range(1, 129)]
    assert not launch.problems


def test_a_barrier_waits_for_those_that_went_another_way() -> None:
    body = """
        setp.lt.u32 %p1, %r0, 20;
        mov.b32 %r9, 0;
        @%p1 bra LATE;
        bar.sync 0;
        bra.uni END;
    LATE:
        shl.b32 %r3, %r0, 2;
        st.shared.b32 [%r3], %r0;
        bar.sync 0;
    END:
        bar.sync 0;
        ld.shared.b32 %r9, [global_smem+76];
    """
    out = np.zeros(64, np.uint32)
    launch = emulate(body + STORE, out, threads=64)
    assert not launch.problems
    assert out.tolist() == [19] * 64


def test_a_barrier_does_not_wait_for_threads_that_returned() -> None:
    body = "setp.ge.u32 %p1, %r0, 40; @%p1 ret; bar.sync 0; mov.b32 %r9, 1;" + STORE
    out = np.zeros(64, np.uint32)
    emulate(body, out, threads=64)
    assert out.tolist() == [1] * 40 + [0] * 24


def test_more_programs_than_run_at_once() -> None:
    out = np.zeros(64 * 300, np.uint32)
    launch = emulate("mov.u32 %r9, %nctaid.x;" + STORE, out, grid=300, threads=64)
    assert (out == 300).all()
    assert launch.counts.programs == 300


def test_instructions_are_counted_by_warp() -> None:
    """Both ways of a warp that parts count, a warp that goes one way counts once."""
    body = "setp.lt.u32 %p1, %r0, 40; @%p1 bra LOW; mul.lo.u32 %r9, %r0, 3; bra.uni END; LOW: add.u32 %r9, %r0, 3; END:"
    launch = emulate(body + STORE, np.zeros(96, np.uint32), threads=96)
    assert launch.counts.instructions["mul.lo.u32"] == 2  # threads 40 to 95: the second and the third warp
    assert launch.counts.instructions["add.u32"] == 2  # threads 0 to 39: the first and the second
    assert launch.counts.instructions["st.global.b32"] == 3
