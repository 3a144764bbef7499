"""Asynchronous copies from global to shared memory, which arrive when their group is waited for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import Array
from tests.emulator.instructions.accesses import active, address, place, put
from tests.emulator.memory import Access
from tests.emulator.parser import Constant, Instruction, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.flow import Mask
    from tests.emulator.machine import Machine, Run


@dataclass
class Copy:
    """Of some threads: the access to shared memory that follows, the words, and each thread's number of the group."""

    access: Access
    words: Array  # a column for each
    who: Array
    group: Array


def copy(i: Instruction, m: "Machine") -> "Run":
    if i.has("commit_group"):
        return commit(i, m)
    if i.has("wait_group", "wait_all"):
        return wait(i, m)
    if not i.has("ca", "cg"):
        raise UnknownPtxError(i.opcode)
    to, of, size_of = i.operands[:3]
    assert isinstance(size_of, Constant)
    size = int(size_of.text, 0)
    given = m.reader(i.operands[3] if len(i.operands) > 3 else size_of, "u32")
    target, source = address(to, m), address(of, m)

    def run(mask: "Mask") -> None:
        """Of `size` bytes the first `given` are copied, zeros follow."""
        who = active(m, mask)
        count = m.full(given())[who].astype(np.int64)
        words = np.zeros((len(who), size // 4), np.uint32)
        for part in np.unique(count[count > 0]).tolist():
            some = np.nonzero(count == part)[0]
            access = place(m, m.globals, source(), part, who[some], i)
            if m.globals.shadow is not None:
                m.globals.shadow.read(access)
            m.launch.counts.loads.add(access.at, part, who[some])
            for k in range(part // 4):
                words[some, k] = m.globals.memory.load(access.at + 4 * k, 4)
        access = place(m, m.shared, target(), size, who, i)
        if m.shared.shadow is not None:
            m.shared.shadow.write(access)
        m.in_flight.append(Copy(access, words, who, m.copy_groups[who]))

    return run


def commit(i: Instruction, m: "Machine") -> "Run":
    def run(mask: "Mask") -> None:
        m.copy_groups[active(m, mask)] += 1

    return run


def wait(i: Instruction, m: "Machine") -> "Run":
    """Until at most so many of a thread's groups are on their way."""
    pending = 0 if i.has("wait_all") else int(i.operands[0].text, 0)

    def run(mask: "Mask") -> None:
        waiting = np.zeros(m.lanes, bool)
        waiting[active(m, mask)] = True
        if i.has("wait_all"):
            m.copy_groups[waiting] += 1
        left = []
        for copy in m.in_flight:
            done = waiting[copy.who] & (copy.group < m.copy_groups[copy.who] - pending)
            if done.any():
                arrive(m, copy, done)
            if not done.all():
                rest = ~done
                access = copy.access._replace(at=copy.access.at[rest], threads=copy.access.threads[rest])
                left.append(Copy(access, copy.words[rest], copy.who[rest], copy.group[rest]))
        m.in_flight = left

    return run


def arrive(m: "Machine", copy: Copy, done: Array) -> None:
    access = copy.access._replace(at=copy.access.at[done], threads=copy.access.threads[done])
    if m.shared.shadow is not None:
        m.shared.shadow.write(access)
    put(m, m.shared, access, list(copy.words[done].T))


TABLE: dict[str, Any] = {"cp": copy}
