"""What threads of a warp do together: exchanges, votes, sums; and fences, which order nothing that runs in order."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import Array
from tests.emulator.parser import Group, Instruction, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.flow import Mask
    from tests.emulator.machine import Machine, Run

LANES = np.arange(32)


def _warps(m: "Machine", value: Array) -> Array:
    return m.full(value).reshape(-1, 32)


def shuffle(i: Instruction, m: "Machine") -> "Run":
    """Each thread gets a's value of another; d|p: whether that one is in its own segment of the warp."""
    results = i.operands[0].parts if isinstance(i.operands[0], Group) else (i.operands[0],)
    value, lane, clamp = m.reader(i.operands[1], "b32"), m.reader(i.operands[2], "u32"), m.reader(i.operands[3], "u32")
    writes = [m.writer(o, kind) for o, kind in zip(results, ("b32", "pred"), strict=False)]
    mode = i.modifiers[1]

    def run(mask: "Mask") -> None:
        b, c = _warps(m, lane()).astype(np.int64) & 31, _warps(m, clamp()).astype(np.int64)
        end, segment = c & 31, c >> 8 & 31
        lowest = LANES & segment
        highest = lowest | end & ~segment
        other = {"up": LANES - b, "down": LANES + b, "bfly": LANES ^ b, "idx": lowest | b & ~segment}[mode]
        inside = other >= highest if mode == "up" else other <= highest
        other = np.where(inside, other, LANES)
        numbers = np.take_along_axis(_warps(m, value()), other, axis=1).ravel()
        for write, result in zip(writes, (numbers, inside.ravel()), strict=False):
            write(result, mask)

    return run


REDUCED: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


def reduce(i: Instruction, m: "Machine") -> "Run":
    """All of a warp get the sum, or another reduction."""
    reduced = next(REDUCED[name] for name in i.modifiers if name in REDUCED)
    read, write = m.reader(i.operands[1], i.type), m.writer(i.operands[0], i.type)

    def run(mask: "Mask") -> None:
        values = _warps(m, read())
        write(np.repeat(reduced.reduce(values, axis=1, dtype=values.dtype), 32), mask)

    return run


def vote(i: Instruction, m: "Machine") -> "Run":
    read, write = m.reader(i.operands[1], "pred"), m.writer(i.operands[0], i.type)

    def run(mask: "Mask") -> None:
        holds = m.full(read())
        if mask is not None:
            holds = holds | ~mask if i.has("all") else holds & mask
        warps = holds.reshape(-1, 32)
        if i.has("ballot"):
            result = (warps.astype(np.uint64) << LANES.astype(np.uint64)).sum(1).astype(np.uint32)
        elif i.has("any", "all"):
            result = warps.any(1) if i.has("any") else warps.all(1)
        else:
            raise UnknownPtxError(i.opcode)
        write(np.repeat(result, 32), mask)

    return run


def elect(i: Instruction, m: "Machine") -> "Run":
    """d|p: p holds in the first thread of a warp."""
    assert isinstance(i.operands[0], Group)
    leader, chosen = m.writer(i.operands[0].parts[0], "b32"), m.writer(i.operands[0].parts[1], "pred")

    def run(mask: "Mask") -> None:
        leader(np.zeros(1, np.uint32), mask)
        chosen(m.special["%laneid"] == 0, mask)

    return run


def warp_barrier(i: Instruction, m: "Machine") -> "Run":
    """Only for whole warps; others are `bar` and decide what is next."""

    def run(mask: "Mask") -> None:
        warps = m.thread[::32] // 32
        m.launch.order.warp_barrier(warps if mask is None else warps[mask.reshape(-1, 32).all(1)])

    return run


def nothing(i: Instruction, m: "Machine") -> "Run":
    return lambda mask: None


TABLE: dict[str, Any] = {
    "shfl": shuffle,
    "redux": reduce,
    "vote": vote,
    "elect": elect,
    "bar": warp_barrier,
    "fence": nothing,
    "membar": nothing,
    "prefetch": nothing,
    "griddepcontrol": nothing,
    "createpolicy": lambda i, m: (lambda write: lambda mask: write(np.zeros(1, np.uint64), mask))(
        m.writer(i.operands[0], "b64")
    ),
}
