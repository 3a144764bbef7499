"""Traffic by sectors, and the bound by instructions."""

from collections import Counter

import numpy as np
import pytest

from tests.emulator.counters import Counts, Traffic, kind_of
from tests.emulator.written import emulate


@pytest.mark.parametrize(
    ("step", "sectors", "useful"),
    [(4, 4, 128), (8, 8, 128), (32, 32, 128), (64, 32, 128), (0, 1, 4)],
)
def test_sectors_of_a_request(step: int, sectors: int, useful: int) -> None:
    """32 threads load 4 bytes each, `step` bytes apart."""
    body = f"mad.wide.u32 %rd10, %r0, {step}, %rd0; ld.global.b32 %r5, [%rd10];"
    loads = emulate(body, np.zeros(512, np.uint32)).counts.loads
    assert loads == Traffic(requests=1, sectors=sectors, useful_bytes=useful)
    assert loads.sectors_per_useful_byte == sectors * 32 / useful


def test_vectors_idle_threads_and_stores() -> None:
    body = """
        mad.wide.u32 %rd10, %r0, 16, %rd0;
        setp.lt.u32 %p1, %r0, 40;
        @%p1 st.global.v4.b32 [%rd10], {%r0, %r0, %r0, %r0};
    """
    counts = emulate(body, np.zeros(1024, np.uint32), threads=96).counts
    assert counts.loads == Traffic()
    assert counts.stores == Traffic(requests=2, sectors=20, useful_bytes=640)


def test_asynchronous_copies_are_loads_of_what_they_read() -> None:
    body = """
        mad.wide.u32 %rd10, %r0, 16, %rd0;
        shl.b32 %r2, %r0, 4;
        cp.async.cg.shared.global [%r2], [%rd10], 16, 8;
    """
    assert emulate(body, np.zeros(128, np.uint32)).counts.loads == Traffic(requests=1, sectors=16, useful_bytes=256)


def test_issue_bound() -> None:
    """A program of 8 warps keeps four schedulers busy; 109 programs on 108 multiprocessors are two waves."""
    counts = Counts(programs=109, warps=8, instructions=Counter({"fma.rn.f32": 109 * 400}))
    assert counts.issue_bound(108) == 2 * 400 / 4
    assert Counts(programs=1, warps=1, instructions=Counter({"add.s32": 400})).issue_bound(108) == 400


@pytest.mark.parametrize(
    ("opcode", "kind"),
    [
        ("fma.rn.f32", "float32"),
        ("mul.f64", "float64"),
        ("fma.rn.f32x2", "float32"),
        ("add.s32", "other"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "matrix"),
        ("cp.async.cg.shared.global", "global memory"),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "shared memory"),
        ("bar.sync", "barrier"),
    ],
)
def test_kinds_of_instructions(opcode: str, kind: str) -> None:
    assert kind_of(opcode) == kind
