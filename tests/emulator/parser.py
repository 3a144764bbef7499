"""PTX text -> a program: instructions with their operands, labels, parameters and registers.

Only what LLVM and Triton's inline assembly write is understood; anything else is an error, not a guess.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class UnknownPtxError(Exception):
    """PTX that the emulator does not model."""


class Register(NamedTuple):
    name: str  # that of a scope of inline assembly has the scope's number behind it
    negated: bool = False


class Constant(NamedTuple):
    text: str


class Symbol(NamedTuple):
    """A label, a parameter, or the name of shared memory."""

    name: str


class Address(NamedTuple):
    base: Register | Symbol | None
    offset: int


class Group(NamedTuple):
    """Operands in braces, or the two results in `d|p`."""

    parts: tuple["Operand", ...]


SINK = Symbol("_")  # a result that nobody wants
Operand = Register | Constant | Symbol | Address | Group


class Instruction(NamedTuple):
    kind: str  # add, of add.rn.f32
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    source: str  # the line of the kernel that it comes from

    @property
    def opcode(self) -> str:
        return ".".join((self.kind, *self.modifiers))

    @property
    def type(self) -> str:
        return self.modifiers[-1]

    def has(self, *modifiers: str) -> bool:
        return any(modifier in self.modifiers for modifier in modifiers)

    def __str__(self) -> str:
        return f"{self.opcode} ({self.source})" if self.source else self.opcode


class Parameter(NamedTuple):
    offset: int  # in the memory of all parameters
    size: int


class Program(NamedTuple):
    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    parameters: dict[str, Parameter]
    registers: dict[str, int]  # bits by name; a predicate has 1
    target: int  # compute capability: 80

    def sizes_of_accesses(self, space: str) -> set[int]:
        """Return the bytes of the elements that loads and stores of a memory have."""
        sizes = {
            int(i.type[1:]) // 8
            for i in self.instructions
            if i.kind in ("ld", "st", "atom", "red") and i.has(space, f"{space}::cta") and i.type[1:].isdigit()
        }
        return sizes or {4}


BITS = {"pred": 1, "b128": 128} | {f"{kind}{bits}": bits for kind in "busf" for bits in (8, 16, 32, 64)}
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
LABEL = re.compile(r"([$\w]+):(?!:)")
GUARD = re.compile(r"@(!?)(%?[\w$]+)\s+")
LINE = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)"
    r"(?:\s+\.ptr(?:\s+\.\w+)*?(?:\s+\.align\s+\d+)?)?\s+(\w+)(?:\[(\d+)\])?"
)
DECLARED = re.compile(r"\.reg\s+\.(\w+)\s+(.*)", re.DOTALL)
ADDRESS = re.compile(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]")
NUMBER = re.compile(r"-?\d\w*")


@lru_cache(maxsize=16)
def parse(ptx: str) -> Program:
    """Return the program of the one entry in `ptx`."""
    files = {number: path.rsplit("/", 1)[-1] for number, path in FILE.findall(ptx)}
    text = COMMENT.sub("", ptx)
    target = re.search(r"\.target\s+sm_(\d+)", text)
    entry = re.search(r"\.entry\s+(\w+)\s*\((.*?)\)([^{]*)\{", text, re.DOTALL)
    if target is None or entry is None:
        raise UnknownPtxError("PTX without a target and an entry")
    body = _Body(text[entry.end() :], files)
    return Program(
        entry[1], tuple(body.instructions), body.labels, _parameters(entry[2]), body.registers, int(target[1])
    )


def _parameters(text: str) -> dict[str, Parameter]:
    parameters, offset = {}, 0
    for alignment, kind, name, count in PARAMETER.findall(text):
        size = BITS[kind] // 8
        offset += -offset % max(int(alignment or 0), size)
        parameters[name] = Parameter(offset, size * int(count or 1))
        offset += size * int(count or 1)
    return parameters


class _Body:
    """The statements of an entry, up to the brace that closes it."""

    def __init__(self, text: str, files: dict[str, str]) -> None:
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.registers: dict[str, int] = {}
        self._families: dict[str, int] = {}  # "%r" of .reg .b32 %r<100>
        self._scopes: list[dict[str, str]] = [{}]  # names as written -> names in `registers`
        self._opened = 0
        source = ""
        for statement in self._statements(text):
            if line := LINE.match(statement):
                source = f"{files.get(line[1], '?')}:{line[2]}"
            elif declared := DECLARED.match(statement):
                self._declare(declared[1], declared[2])
            elif statement.startswith("."):
                if not statement.startswith(".pragma"):
                    raise UnknownPtxError(f"directive {statement!r}")
            else:
                self.instructions.append(self._instruction(statement, source))

    def _statements(self, text: str) -> Iterator[str]:
        at = 0
        while True:
            while text[at].isspace() or text[at] == ";":
                at += 1
            if text[at] == "{":
                self._scopes.append({})
                self._opened += 1
                at += 1
            elif text[at] == "}":
                self._scopes.pop()
                if not self._scopes:
                    return
                at += 1
            elif line := LINE.match(text, at):
                yield line[0]
                at = line.end()
            elif label := LABEL.match(text, at):
                self.labels[label[1]] = len(self.instructions)
                at = label.end()
            else:
                end = text.index(";", at)
                yield " ".join(text[at:end].split())
                at = end + 1

    def _declare(self, kind: str, names: str) -> None:
        for name in names.split(","):
            name = name.strip()
            if "<" in name:
                self._families[name[: name.index("<")]] = BITS[kind]
                continue
            own = name if len(self._scopes) == 1 else f"{name}#{self._opened}"
            self._scopes[-1][name] = own
            self.registers[own] = BITS[kind]

    def _instruction(self, statement: str, source: str) -> Instruction:
        guard = None
        if match := GUARD.match(statement):
            guard = self._register(match[2], negated=match[1] == "!")
            statement = statement[match.end() :]
        opcode, _, rest = statement.partition(" ")
        kind, *modifiers = opcode.split(".")
        operands = tuple(self._operand(part) for part in _parts(rest))
        return Instruction(kind, tuple(modifiers), operands, guard, source)

    def _register(self, name: str, *, negated: bool = False) -> Register:
        for scope in reversed(self._scopes):
            if name in scope:
                return Register(scope[name], negated)
        family = name.rstrip("0123456789")
        if family not in self._families:
            raise UnknownPtxError(f"register {name}")
        self.registers[name] = self._families[family]
        return Register(name, negated)

    def _is_register(self, name: str) -> bool:
        return any(name in scope for scope in self._scopes) or name.rstrip("0123456789") in self._families

    def _operand(self, text: str) -> Operand:
        if text == "_":
            return SINK
        if text.startswith("{"):
            return Group(tuple(self._operand(part) for part in _parts(text[1:-1])))
        if "|" in text:
            return Group(tuple(self._operand(part.strip()) for part in text.split("|")))
        if text.startswith("!"):
            return self._register(text[1:], negated=True)
        if match := ADDRESS.fullmatch(text):
            if NUMBER.fullmatch(match[1]):
                return Address(None, int(match[1], 0))
            base = self._operand(match[1])
            assert isinstance(base, Register | Symbol)
            return Address(base, int(match[2] or "0", 0))
        if NUMBER.fullmatch(text):
            return Constant(text)
        return self._register(text) if self._is_register(text) else Symbol(text)


def _parts(text: str) -> Iterator[str]:
    """Split at the commas outside of braces and brackets."""
    depth, part = 0, ""
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += character
    if part.strip():
        yield part.strip()
