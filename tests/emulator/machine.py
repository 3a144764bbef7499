"""Runs a program: all threads of many programs of the grid at once, an instruction at a time, as numpy arrays.

Every instruction is decoded once, into a function of the mask of the threads that run it.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tests.emulator.counters import Counts
from tests.emulator.flights import Flights
from tests.emulator.flow import Mask, Threads
from tests.emulator.formats import FORMATS, WORDS, Array, constant
from tests.emulator.instructions import TABLE, warpgroup
from tests.emulator.memory import PARAMETERS, Memory, Shadow
from tests.emulator.order import Order
from tests.emulator.parser import SINK, Constant, Instruction, Operand, Program, Register, Symbol, UnknownPtxError

Run = Callable[[Mask], None]  # of an instruction
THREADS_AT_ONCE = 8192
UNDEFINED = {bits: np.full(1, 0xDEADDEADDEADDEAD & (1 << bits) - 1, np.uint64).astype(t) for bits, t in WORDS.items()}


class Space(NamedTuple):
    """A memory as threads address it: `origin` is the place of each thread's address 0."""

    name: str
    memory: Memory
    shadow: Shadow | None
    origin: Array
    size: int | None = None  # of a program's own part


class Launch:
    """The grid, the parameters, global memory and its address; then the counts and the problems."""

    def __init__(
        self, grid: tuple[int, int, int], parameters: bytes, memory: Memory, base: int, *, warps: int, checks: bool
    ) -> None:
        self.grid, self.parameters, self.memory, self.base, self.checks = grid, parameters, memory, base, checks
        self.problems: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.counts = Counts(programs=int(np.prod(grid)), warps=warps)
        self.order = Order(self.counts.programs, warps)
        self.shadow: Shadow | None = None

    def shadowed(self, grain: int) -> Shadow:
        """Return a shadow of global memory, where nothing is allowed yet; it checks from now on."""
        self.shadow = Shadow("global", len(self.memory.bytes), grain, self.order, self.problems)
        return self.shadow


class Machine:
    def __init__(self, program: Program, warps: int, shared_bytes: int) -> None:
        """`warps` and bytes of shared memory of one program."""
        self.program, self.warps, self.threads = program, warps, 32 * warps
        self.shared_bytes = -(-max(shared_bytes, 16) // 16) * 16
        self._grain = min(program.sizes_of_accesses("shared") | {4})
        self._slots = {name: i for i, name in enumerate(program.registers)}
        self._bits = list(program.registers.values())
        self.registers: list[Array] = []
        self.special: dict[str, Array] = {}
        self.flights = Flights(set().union(*(warpgroup.accumulators(i) for i in program.instructions)))
        self._steps = [self._decoded(instruction) for instruction in program.instructions]

    def run(self, launch: Launch) -> None:
        """Run the whole grid, some programs at a time, in order."""
        self.launch, programs = launch, launch.counts.programs
        executed = np.zeros(len(self._steps), np.int64)
        at_once = max(1, THREADS_AT_ONCE // self.threads)
        with np.errstate(all="ignore"):
            for first in range(0, programs, at_once):
                self._start(first, min(at_once, programs - first))
                self._wave(executed)
        for instruction, number in zip(self.program.instructions, executed.tolist(), strict=True):
            if number:
                launch.counts.instructions[instruction.opcode] += number

    def _start(self, first: int, programs: int) -> None:
        """Set up the programs of a wave: registers, numbers and shared memory."""
        launch = self.launch
        self.lanes = programs * self.threads
        self.thread = np.arange(first * self.threads, first * self.threads + self.lanes)
        program, tid = self.thread // self.threads, (self.thread % self.threads).astype(np.uint32)
        self.registers[:] = [UNDEFINED[bits] for bits in self._bits]
        x, y, z = np.unravel_index(program, launch.grid, order="F")
        self.special = {"%tid.x": tid, "%laneid": tid % 32, "%warpid": tid // 32}
        self.special |= {f"%ctaid.{a}": n.astype(np.uint32) for a, n in zip("xyz", (x, y, z), strict=True)}
        numbers = {"%ntid.x": self.threads, "%ntid.y": 1, "%ntid.z": 1, "%tid.y": 0, "%tid.z": 0}
        numbers |= {f"%nctaid.{a}": n for a, n in zip("xyz", launch.grid, strict=True)}
        self.special |= {name: np.array([n], np.uint32) for name, n in numbers.items()}
        self.globals = Space("global", launch.memory, launch.shadow, np.full(self.lanes, -launch.base))
        memory = Memory(programs * self.shared_bytes)
        shadow = None
        if launch.checks:
            shadow = Shadow("shared", len(memory.bytes), self._grain, launch.order, launch.problems)
            shadow.allow(0, np.zeros(len(memory.bytes), bool))
        self.shared = Space("shared", memory, shadow, (program - first) * self.shared_bytes, self.shared_bytes)
        self.in_flight: list = []  # asynchronous copies
        self.copy_groups = np.zeros(self.lanes, np.int64)  # that each thread has committed
        self.flights.start(self.lanes)
        self.flow = Threads(first, programs, self.threads, launch.order)

    def _wave(self, executed: Array) -> None:
        flow, steps, warps = self.flow, self._steps, self.lanes // 32
        while (turn := flow.turn()) is not None:
            at, mask = turn
            executed[at] += warps if mask is None else np.count_nonzero(mask.reshape(-1, 32).any(1))
            guard, run, moves = steps[at]
            on = mask
            if guard is not None:
                holds = guard()
                if len(holds) == 1:
                    holds = np.broadcast_to(holds, self.lanes)
                on = holds if mask is None else holds & mask
                if mask is None and on.all():
                    on = None
                elif not on.any():
                    flow.advance(mask)
                    continue
            if not moves:
                self._running = on
                run(on)
                flow.advance(mask)
            else:
                run(on, mask)

    def _decoded(self, instruction: Instruction) -> tuple[Callable[[], Array] | None, Callable, bool]:
        """Return the value of the guard, the function, and whether it decides itself what is next."""
        guard = self.reader(instruction.guard, "pred") if instruction.guard else None
        kind = instruction.kind
        if kind == "bra":
            (label,) = instruction.operands
            target = self.program.labels[label.name]
            return guard, lambda on, mask: self.flow.jump(target, on, mask), True
        if kind in ("ret", "exit"):
            return guard, lambda on, mask: self.flow.leave(on, mask), True
        if kind in ("bar", "barrier") and not instruction.has("warp"):
            if instruction.operands != (Constant("0"),):
                raise UnknownPtxError(f"{instruction.opcode} of a part of the threads")
            return guard, lambda on, mask: self.flow.wait(on, mask), True
        if kind not in TABLE:
            raise UnknownPtxError(f"instruction {instruction.opcode}")
        return guard, TABLE[kind](instruction, self), False

    def reader(self, operand: Operand, kind: str, *, in_flight: bool = False) -> Callable[[], Array]:
        """Return a function to the operand's numbers as the type `kind`, one for each thread or one for all.

        A register's value may be on its way only for an instruction that says so.
        """
        if not in_flight and isinstance(operand, Register) and operand.name in self.flights.names:
            return self._of_arrived(operand, kind)
        of = FORMATS[kind]
        if isinstance(operand, Constant):
            numbers = of.numbers(constant(operand.text, of.bits))
            return lambda: numbers
        if isinstance(operand, Symbol):
            return self._special(operand.name, kind)
        if not isinstance(operand, Register):
            raise UnknownPtxError(f"operand {operand}")
        registers, slot = self.registers, self._slots[operand.name]
        word = WORDS[of.bits]
        if operand.negated:
            return lambda: ~registers[slot]
        if self._bits[slot] != of.bits:
            return lambda: of.numbers(registers[slot].astype(word))
        if of.numbers(UNDEFINED[of.bits]) is UNDEFINED[of.bits]:
            return lambda: registers[slot]
        numbers = of.numbers
        return lambda: numbers(registers[slot])

    def _of_arrived(self, register: Register, kind: str) -> Callable[[], Array]:
        read = self.reader(register, kind, in_flight=True)

        def checked() -> Array:
            flies = self.flights.of(register.name)
            if (flies if self._running is None else flies & self._running).any():
                self.problem(f"read of {register.name} before the wait for its product")
            return read()

        return checked

    def writer(self, operand: Operand, kind: str) -> Callable[[Array, Mask], None]:
        """Return a function that puts numbers of the type `kind` into a register."""
        if operand == SINK:
            return lambda numbers, mask: None
        assert isinstance(operand, Register)
        registers, slot = self.registers, self._slots[operand.name]
        word = WORDS[self._bits[slot]]

        def widened(numbers: Array) -> Array:
            return numbers.astype(np.dtype(f"{numbers.dtype.kind}{np.dtype(word).itemsize}")).view(word)

        words = FORMATS[kind].words if FORMATS[kind].bits == self._bits[slot] else widened

        def write(numbers: Array, mask: Mask) -> None:
            value = words(numbers)
            registers[slot] = value if mask is None else np.where(mask, value, registers[slot])

        return write

    def _special(self, name: str, kind: str) -> Callable[[], Array]:
        word = WORDS[FORMATS[kind].bits]
        if name in self.program.parameters:
            place = np.array([PARAMETERS + self.program.parameters[name].offset], word)
            return lambda: place
        if name == "global_smem":
            start = np.zeros(1, word)
            return lambda: start
        return lambda: self.special[name].astype(word)

    def full(self, value: Array) -> Array:
        """Return a value of each thread."""
        return np.broadcast_to(value, self.lanes) if len(value) == 1 else value

    def problem(self, words: str) -> None:
        self.launch.problems[words] += 1
