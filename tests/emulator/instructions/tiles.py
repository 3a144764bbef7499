"""Tiles of 8 x 8 halves between shared memory and the registers of a warp: thread t has row t / 4, columns 2 (t % 4).

The eight threads from 8 k on give the rows' addresses of tile k.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from tests.emulator.formats import Array
from tests.emulator.instructions.accesses import address, parts, place
from tests.emulator.parser import Instruction, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.flow import Mask
    from tests.emulator.machine import Machine, Run


def _rows(i: Instruction, m: "Machine", mask: "Mask", tiles: int) -> Array:
    """Return the threads that give an address; whole warps run."""
    rows = m.special["%laneid"] < 8 * tiles
    return np.nonzero(rows if mask is None else rows & mask)[0]


def load_tiles(i: Instruction, m: "Machine") -> "Run":
    if not i.has("m8n8") or i.type != "b16":
        raise UnknownPtxError(i.opcode)
    where, outs = address(i.operands[1], m), parts(i.operands[0])
    writes, transposed = [m.writer(o, "b32") for o in outs], i.has("trans")

    def run(mask: "Mask") -> None:
        who = _rows(i, m, mask, len(writes))
        access = place(m, m.shared, where(), 16, who, i)
        if m.shared.shadow is not None:
            m.shared.shadow.read(access)
        halves = m.shared.memory.load(access.at[:, None] + 2 * np.arange(8), 2)
        tiles = halves.reshape(-1, len(writes), 8, 8)  # of every warp that runs
        if transposed:
            tiles = tiles.transpose(0, 1, 3, 2)
        words = np.ascontiguousarray(tiles).view(np.uint32).reshape(-1, len(writes), 32)
        for k, write in enumerate(writes):
            write(_of_all(m, words[:, k].ravel(), mask), mask)

    return run


def store_tiles(i: Instruction, m: "Machine") -> "Run":
    if not i.has("m8n8") or i.type != "b16":
        raise UnknownPtxError(i.opcode)
    where, reads = address(i.operands[0], m), [m.reader(o, "b32") for o in parts(i.operands[1])]
    transposed = i.has("trans")

    def run(mask: "Mask") -> None:
        who = _rows(i, m, mask, len(reads))
        access = place(m, m.shared, where(), 16, who, i)
        if m.shared.shadow is not None:
            m.shared.shadow.write(access)
        words = np.stack([m.full(read()) if mask is None else m.full(read())[mask] for read in reads], 1)
        tiles = words.reshape(-1, 8, 4, len(reads)).transpose(0, 3, 1, 2)
        halves = np.ascontiguousarray(tiles).view(np.uint16)
        if transposed:
            halves = halves.transpose(0, 1, 3, 2)
        m.shared.memory.store(access.at[:, None] + 2 * np.arange(8), np.ascontiguousarray(halves).reshape(-1, 8))

    return run


def _of_all(m: "Machine", words: Array, mask: "Mask") -> Array:
    """Return words of the threads that run as an array of all of them."""
    if mask is None:
        return words
    everyone = np.zeros(m.lanes, words.dtype)
    everyone[mask] = words
    return everyone


TABLE: dict[str, Any] = {"ldmatrix": load_tiles, "stmatrix": store_tiles}
