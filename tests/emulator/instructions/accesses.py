"""Loads, stores and atomics: of parameters, global and shared memory."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import FORMATS, WORDS, Array
from tests.emulator.memory import PARAMETERS, Access, MemoryFaultError
from tests.emulator.parser import Address, Group, Instruction, Operand, Symbol, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.flow import Mask
    from tests.emulator.machine import Machine, Run, Space


def space_of(i: Instruction, m: "Machine") -> Callable[[], "Space"]:
    if i.has("global"):
        return lambda: m.globals
    if i.has("shared", "shared::cta"):
        return lambda: m.shared
    raise UnknownPtxError(f"memory of {i.opcode}")


def address(operand: Operand, m: "Machine") -> Callable[[], Array]:
    """Return a function to every thread's address."""
    assert isinstance(operand, Address)
    offset = operand.offset
    if operand.base is None or (isinstance(operand.base, Symbol) and operand.base.name == "global_smem"):
        return lambda: np.full(m.lanes, offset)
    read = m.reader(operand.base, f"u{m.program.registers.get(operand.base.name, 64)}")
    return lambda: m.full(read().astype(np.int64) + offset)


def parts(operand: Operand) -> tuple[Operand, ...]:
    return operand.parts if isinstance(operand, Group) else (operand,)


def active(m: "Machine", mask: "Mask") -> Array:
    """Return the numbers in the wave of the threads in `mask`."""
    return np.arange(m.lanes) if mask is None else np.nonzero(mask)[0]


def place(m: "Machine", space: "Space", addresses: Array, size: int, who: Array, i: Instruction) -> Access:
    """Return the access of the threads `who`: `size` bytes each."""
    if space.size is not None and ((addresses[who] < 0) | (addresses[who] + size > space.size)).any():
        raise MemoryFaultError(f"access out of bounds, {space.name} memory: {i}")
    return Access((addresses + space.origin)[who], size, m.thread[who], str(i))


def load(i: Instruction, m: "Machine") -> "Run":
    if i.has("param"):
        return load_parameter(i, m)
    space, where, size = space_of(i, m), address(i.operands[1], m), FORMATS[i.type].bits // 8
    writes = [m.writer(o, i.type) for o in parts(i.operands[0])]
    numbers = FORMATS[i.type].numbers
    counted = i.has("global")

    def run(mask: "Mask") -> None:
        memory, who = space(), active(m, mask)
        access = place(m, memory, where(), size * len(writes), who, i)
        if memory.shadow is not None:
            memory.shadow.read(access)
        if counted:
            m.launch.counts.loads.add(access.at, access.size, who)
        for k, write in enumerate(writes):
            words = memory.memory.load(access.at + k * size, size)
            if mask is not None:
                everyone = np.zeros(m.lanes, words.dtype)
                everyone[who] = words
                words = everyone
            write(numbers(words), mask)

    return run


def load_parameter(i: Instruction, m: "Machine") -> "Run":
    size, (to, of) = FORMATS[i.type].bits // 8, i.operands
    assert isinstance(of, Address)
    where = m.reader(of.base, "u64")
    writes = [m.writer(o, i.type) for o in parts(to)]

    def run(mask: "Mask") -> None:
        begin = where().astype(np.int64) + of.offset - PARAMETERS
        bytes_ = np.frombuffer(m.launch.parameters, np.uint8)
        for k, write in enumerate(writes):
            words = bytes_[(begin + k * size)[:, None] + np.arange(size)].view(WORDS[8 * size])[:, 0]
            write(FORMATS[i.type].numbers(words), mask)

    return run


def store(i: Instruction, m: "Machine") -> "Run":
    kind = f"b{FORMATS[i.type].bits}"
    space, where, size = space_of(i, m), address(i.operands[0], m), FORMATS[kind].bits // 8
    reads = [m.reader(o, kind) for o in parts(i.operands[1])]
    counted = i.has("global")

    def run(mask: "Mask") -> None:
        memory, who = space(), active(m, mask)
        access = place(m, memory, where(), size * len(reads), who, i)
        if memory.shadow is not None:
            memory.shadow.write(access)
        if counted:
            m.launch.counts.stores.add(access.at, access.size, who)
        put(m, memory, access, [m.full(read())[who] for read in reads])

    return run


def put(m: "Machine", space: "Space", access: Access, words: list[Array]) -> None:
    """Write consecutive words.

    Threads that meet in a place of global memory must agree. In shared memory Triton lets all threads that hold a value
    write it, and after a sum over a warp they may hold it with different last bits: worth a note.
    """
    for k, word in enumerate(words):
        at = access.at + k * word.itemsize
        space.memory.store(at, word)
        if space.shadow is not None and (space.memory.load(at, word.itemsize) != word).any():
            found = m.launch.problems if space.name == "global" else m.launch.notes
            found[f"threads write different values to one place, {space.name} memory: {access.what}"] += 1


COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "exch": lambda old, new: new,
    "max": max,
    "min": min,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
}


def atomic(i: Instruction, m: "Machine") -> "Run":
    """old = *a; *a = combined(old, b), one thread after the other; `cas` compares with b and puts c."""
    kind, size = i.type, FORMATS[i.type].bits // 8
    result, (where_, *sources) = (None, i.operands) if i.kind == "red" else (i.operands[0], i.operands[1:])
    space, where, reads = space_of(i, m), address(where_, m), [m.reader(o, kind) for o in sources]
    write = m.writer(result, kind) if result is not None else None
    combine = next((COMBINED[name] for name in i.modifiers if name in COMBINED), None)
    if combine is None and not i.has("cas"):
        raise UnknownPtxError(i.opcode)
    of = FORMATS[kind]

    def run(mask: "Mask") -> None:
        memory, who = space(), active(m, mask)
        access = place(m, memory, where(), size, who, i)
        if memory.shadow is not None:
            memory.shadow.atomic(access)
        if i.has("global"):
            m.launch.counts.stores.add(access.at, size, who)
        given = [m.full(read()) for read in reads]
        olds = np.zeros(m.lanes, given[0].dtype)
        for at, thread in zip(access.at.tolist(), who.tolist(), strict=True):
            order_between_programs(m, i, at, int(m.thread[thread]) // m.threads)
            old = of.numbers(memory.memory.load(np.array([at]), size))[0]
            olds[thread] = old
            if combine is not None:
                new = combine(old, given[0][thread])
            else:
                new = given[1][thread] if old == given[0][thread] else old
            memory.memory.store(np.array([at]), of.words(np.array([new], given[0].dtype)))
        if write is not None:
            write(olds, mask)

    return run


def order_between_programs(m: "Machine", i: Instruction, word: int, program: int) -> None:
    if i.has("acquire", "acq_rel"):
        m.launch.order.acquire(program, word)
    if i.has("release", "acq_rel"):
        m.launch.order.release(program, word)


TABLE: dict[str, Any] = {"ld": load, "st": store, "atom": atomic, "red": atomic}
