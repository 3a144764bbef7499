"""Products of four warps, `wgmma` of compute capability 9.0: d = a b + d with b, and often a, read from shared memory.

A descriptor says where an operand's elements are: start, the byte offsets between its blocks along both axes ("leading"
and "stride"), and a swizzle, which moves chunks of 16 bytes. K-major is an operand whose depth is contiguous. Results
are there at once; to read them before the wait for their group is a problem.
"""

import re
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tests.emulator.formats import FORMATS, Array
from tests.emulator.instructions.accesses import active, parts
from tests.emulator.instructions.matrix import PACKED, gather, of_a, truncated_to_tf32
from tests.emulator.memory import Access
from tests.emulator.parser import Group, Instruction, Register, UnknownPtxError

if TYPE_CHECKING:
    from tests.emulator.flow import Mask
    from tests.emulator.machine import Machine, Run

CHUNK = 16  # bytes that a swizzle keeps together; 8 rows of chunks are a core matrix
CHUNKS_OF_ROW = {0: 1, 1: 8, 2: 4, 3: 2}  # by the swizzle's number: none, 128, 64 and 32 bytes


class Descriptor(NamedTuple):
    start: int
    leading: int
    stride: int
    swizzle: int

    @staticmethod
    def of(bits: int) -> "Descriptor":
        if bits >> 49 & 7:
            raise UnknownPtxError("a matrix descriptor with a base offset")
        start, leading, stride = (16 * (bits >> shift & 0x3FFF) for shift in (0, 16, 32))
        return Descriptor(start, leading, stride, bits >> 62)

    def places(self, across: int, depth: int, size: int, *, k_major: bool) -> Array:
        """Return the address of every element, [across, depth], of `size` bytes each."""
        at = self.start + _offsets(across, depth, size, k_major, self.leading, self.stride, self.swizzle)
        return at ^ (at >> 7 & CHUNKS_OF_ROW[self.swizzle] - 1) << 4


@cache
def _offsets(across: int, depth: int, size: int, k_major: bool, leading: int, stride: int, swizzle: int) -> Array:
    """Before swizzling: PTX manual, "strides" and "canonical layouts" of wgmma's shared memory."""
    n, k, row = np.arange(across)[:, None], np.arange(depth), CHUNK * CHUNKS_OF_ROW[swizzle]
    per = CHUNK // size  # elements of a chunk
    if k_major:
        along = k // per * (CHUNK if swizzle else leading) + k % per * size
        return n % 8 * row + n // 8 * stride + along
    if swizzle == 0:
        return n % per * size + n // per * stride + k % 8 * CHUNK + k // 8 * leading
    block = row // size  # elements of a row of the swizzled block
    return n % block * size + n // block * leading + k % 8 * row + k // 8 * stride


def multiply(i: Instruction, m: "Machine") -> "Run":
    shape = next(match for match in (re.fullmatch(r"m64n(\d+)k(\d+)", name) for name in i.modifiers) if match)
    across, depth = int(shape[1]), int(shape[2])
    of = i.modifiers[-2]
    if of not in ("bf16", "f16", "tf32") or i.modifiers[-3] != "f32" or m.warps % 4:
        raise UnknownPtxError(i.opcode)
    d, a, b, keeps, *scales = i.operands
    if any(scale.text != "1" for scale in scales[:2]):
        raise UnknownPtxError(f"{i.opcode} with a factor")
    from_registers = isinstance(a, Group)
    transposed = [scale.text == "1" for scale in scales[2:]]
    b_k_major = not transposed[-1] if transposed else True
    a_k_major = not transposed[0] if transposed and not from_registers else True
    packed, per = PACKED[of]
    reads_a = [m.reader(o, packed) for o in a.parts] if from_registers else []
    a_bits, b_bits = (None if isinstance(o, Group) else m.reader(o, "u64") for o in (a, b))
    accumulators = parts(d)
    reads_d = [m.reader(o, "f32", in_flight=True) for o in accumulators]
    writes, keep = [m.writer(o, "f32") for o in accumulators], m.reader(keeps, "pred")
    size = 4 if of == "tf32" else 2
    row, column = of_d(across)
    place_a = of_a(16, depth, per)

    def run(mask: "Mask") -> None:
        groups = active(m, mask)[::128] // 128  # of four warps, in the wave
        B = operand(m, i, b_bits, groups, (across, depth), of, size, b_k_major, of_each_warp=False)
        if from_registers:
            A = np.empty((m.lanes // 32, 16, depth))
            A[:, place_a[0], place_a[1]] = gather(reads_a, m)
            A = A.reshape(-1, 64, depth)[groups]
        else:
            A = operand(m, i, a_bits, groups, (64, depth), of, size, a_k_major, of_each_warp=True)
        if of == "tf32":
            A, B = (truncated_to_tf32(x.astype(np.float32)).astype(np.float64) for x in (A, B))
        product = np.zeros((m.lanes // 128, 64, across))
        product[groups] = A @ B.transpose(0, 2, 1)
        of_threads = product[:, row, column].reshape(m.lanes, -1)
        for k, (read, write) in enumerate(zip(reads_d, writes, strict=True)):
            before = np.where(keep(), read(), np.float32(0))
            write((of_threads[:, k] + before).astype(np.float32), mask)
        m.flights.begin(accumulators, active(m, mask))

    return run


def of_d(across: int) -> tuple[Array, Array]:
    """Row and column in d [64, across] of the 128 threads' registers."""
    thread, register = np.arange(128)[:, None], np.arange(across // 2)
    row = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    return row, register // 4 * 8 + thread % 4 * 2 + register % 2


def operand(
    m: "Machine", i: Instruction, bits: Any, groups: Array, shape: tuple[int, int], of: str, size: int,
    k_major: bool, *, of_each_warp: bool,
) -> Array:  # fmt: skip
    """Return [groups, across, depth] from shared memory; a warp reads its own rows of a, and all of b."""
    word, matrices = {"bf16": "bf16", "f16": "f16", "tf32": "f32"}[of], []
    numbers = FORMATS[word].numbers
    values = m.full(bits())
    for group in groups.tolist():
        places = Descriptor.of(int(values[128 * group])).places(*shape, size, k_major=k_major)
        at = places + m.shared.origin[128 * group]
        if m.shared.shadow is not None:
            check(m, i, at, 128 * group, of_each_warp=of_each_warp)
        matrices.append(numbers(m.shared.memory.load(at, size)).astype(np.float64))
    return np.stack(matrices)


def check(m: "Machine", i: Instruction, at: Array, first: int, *, of_each_warp: bool) -> None:
    """Every chunk is read by one thread of each warp that needs it."""
    rows = at.reshape(4, -1) if of_each_warp else np.broadcast_to(at.ravel(), (4, at.size))
    for warp, places in enumerate(rows):
        chunks = np.unique(places // CHUNK) * CHUNK
        lane = first + 32 * warp + np.arange(len(chunks)) % 32
        m.shared.shadow.read(Access(chunks, CHUNK, m.thread[lane], str(i)))


def wgmma(i: Instruction, m: "Machine") -> "Run":
    if i.has("mma_async"):
        return multiply(i, m)
    if i.has("commit_group"):
        return lambda mask: m.flights.commit(active(m, mask))
    if i.has("wait_group"):
        pending = int(i.operands[0].text, 0)
        return lambda mask: m.flights.wait(active(m, mask), pending)
    if i.has("fence"):
        return lambda mask: None
    raise UnknownPtxError(i.opcode)


def accumulators(i: Instruction) -> set[str]:
    """Return the names of the registers that hold results on their way."""
    if i.kind != "wgmma" or not i.has("mma_async"):
        return set()
    return {o.name for o in parts(i.operands[0]) if isinstance(o, Register)}


TABLE: dict[str, Any] = {"wgmma": wgmma}
