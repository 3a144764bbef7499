"""Products of a warp's tiles, `mma.sync`: d = a b + c, with the layouts of the PTX manual.

Products and sums are made in float64 and rounded once to d's type; tensor cores truncate their partial sums instead.
"""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import FORMATS, Array
from tests.emulator.instructions.accesses import parts
from tests.emulator.parser import Instruction, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.flow import Mask
    from tests.emulator.machine import Machine, Run

ROW, COLUMN = np.arange(32) // 4, np.arange(32) % 4  # of a thread in an 8 x 4 arrangement of the warp
# Numbers of an operand by its type: how many are in a register, and how a register's bits are read.
PACKED = {"bf16": ("bf16x2", 2), "f16": ("f16x2", 2), "tf32": ("f32", 1), "f64": ("f64", 1)}


def truncated_to_tf32(numbers: Array) -> Array:
    return (numbers.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def of_a(rows: int, depth: int, per: int) -> tuple[Array, Array]:
    """Row and column in a [rows, depth] of every thread's numbers, [32, registers, per]: rows of registers first."""
    down = rows // 8
    register = np.arange(down * (depth // (4 * per)))
    row = ROW[:, None] + 8 * (register % down)
    column = per * COLUMN[:, None] + 4 * per * (register // down)
    return np.repeat(row[..., None], per, 2), column[..., None] + np.arange(per)


def of_b(depth: int, per: int) -> tuple[Array, Array]:
    """Row and column in b [depth, 8]."""
    register = np.arange(depth // (4 * per))
    row = per * COLUMN[:, None] + 4 * per * register
    return row[..., None] + np.arange(per), np.repeat(ROW[:, None, None] + 0 * register[:, None], per, 2)


def of_c(rows: int) -> tuple[Array, Array]:
    """Row and column in c [rows, 8]: pairs of columns, a register each."""
    register = np.arange(rows // 4)
    return ROW[:, None] + 8 * (register // 2), 2 * COLUMN[:, None] + register % 2


def gather(reads: list[Callable[[], Array]], m: "Machine") -> Array:
    """Return the numbers of every warp's threads: [warps, 32, registers, per]."""
    columns = []
    for read in reads:
        numbers = read()
        numbers = numbers.reshape(len(numbers), -1)
        columns.append(np.broadcast_to(numbers, (m.lanes, numbers.shape[1])))
    return np.stack(columns, 1).reshape(-1, 32, len(reads), columns[0].shape[1])


def multiply(i: Instruction, m: "Machine") -> "Run":
    shape = next(match for match in (re.fullmatch(r"m(\d+)n8k(\d+)", name) for name in i.modifiers) if match)
    if not i.has("row") or not i.has("col") or i.modifiers[-3] not in PACKED:
        raise UnknownPtxError(i.opcode)
    rows, depth = int(shape[1]), int(shape[2])
    to, of, _, _ = i.modifiers[-4:]
    packed, per = PACKED[of]
    d, a, b, c = (parts(o) for o in i.operands)
    reads_a, reads_b = [m.reader(o, packed) for o in a], [m.reader(o, packed) for o in b]
    reads_c, writes = [m.reader(o, to) for o in c], [m.writer(o, to) for o in d]
    place_a, place_b, place_c = of_a(rows, depth, per), of_b(depth, per), of_c(rows)
    dtype = FORMATS[to].numbers(np.zeros(1, f"u{FORMATS[to].bits // 8}")).dtype

    def run(mask: "Mask") -> None:
        left, right, start = (gather(reads, m) for reads in (reads_a, reads_b, reads_c))
        if of == "tf32":
            left, right = truncated_to_tf32(left), truncated_to_tf32(right)
        warps = len(left)
        A, B = np.empty((warps, rows, depth)), np.empty((warps, depth, 8))
        A[:, place_a[0], place_a[1]] = left
        B[:, place_b[0], place_b[1]] = right
        product = (A @ B)[:, place_c[0], place_c[1]] + start[..., 0]
        for k, write in enumerate(writes):
            write(np.ascontiguousarray(product[:, :, k]).astype(dtype).ravel(), mask)

    return run


TABLE: dict[str, Any] = {"mma": multiply}
