"""Small programs in PTX, written by hand for the tests of the emulator."""

from collections.abc import Sequence

import numpy as np

from tests.emulator.formats import Array
from tests.emulator.machine import Launch, Machine
from tests.emulator.memory import Memory
from tests.emulator.parser import parse

BASE = 1 << 40
APART = 4096  # bytes between arrays; what lies there belongs to nobody

PROGRAM = """
.version 8.7
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 global_smem[];
.visible .entry kernel(
{parameters}
)
.reqntid {threads}
{{
    .reg .pred %p<20>;
    .reg .b16 %rs<20>;
    .reg .b32 %r<100>;
    .reg .b64 %rd<100>;
{prologue}
{body}
    ret;
}}
"""


def emulate(
    body: str, *arrays: Array, threads: int = 32, grid: int = 1, shared: int = 4096, unwritten: Sequence[int] = ()
) -> Launch:
    """Run `body` on arrays, which it changes in place.

    %rd0, %rd1, ... are their addresses, %r0 is the thread, %r1 the program; arrays of the numbers in `unwritten` have
    no value yet.
    """
    parameters = ",\n".join(f"    .param .u64 .ptr .global .align 16 kernel_param_{k}" for k in range(len(arrays)))
    prologue = "\n".join(f"    ld.param.b64 %rd{k}, [kernel_param_{k}];" for k in range(len(arrays)))
    prologue += "\n    mov.u32 %r0, %tid.x;\n    mov.u32 %r1, %ctaid.x;"
    text = PROGRAM.format(parameters=parameters, threads=threads, prologue=prologue, body=body)
    machine = Machine(parse(text), threads // 32, shared)
    begins = np.cumsum([APART] + [-(-a.nbytes // 512) * 512 + APART for a in arrays])
    memory = Memory(int(begins[-1]))
    addresses = b"".join(int(BASE + begin).to_bytes(8, "little") for begin in begins[:-1])
    launch = Launch((grid, 1, 1), addresses, memory, BASE, warps=threads // 32, checks=True)
    shadow = launch.shadowed(min(machine.program.sizes_of_accesses("global") | {4}))
    for k, (begin, array) in enumerate(zip(begins.tolist(), arrays, strict=False)):
        memory.bytes[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        shadow.allow(begin, np.full(array.nbytes, k not in unwritten))
    machine.run(launch)
    for begin, array in zip(begins.tolist(), arrays, strict=False):
        array.reshape(-1).view(np.uint8)[:] = memory.bytes[begin : begin + array.nbytes]
    return launch


MOVE = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}
REGISTER = {1: "%rs", 2: "%rs", 4: "%r", 8: "%rd"}


def apply(instruction: str, result: type, *columns: Array) -> Array:
    """`instruction` with $d for its result and $a, $b, $c for the columns' numbers, a thread for each."""
    out = np.zeros(len(columns[0]), result)
    lines = []
    for k, array in enumerate([*columns, out]):
        size = array.itemsize
        lines.append(f"    mad.wide.u32 %rd{20 + k}, %r0, {size}, %rd{k};")
        name = f"{REGISTER[size]}{10 + k}" if size < 8 else f"%rd{30 + k}"
        if k < len(columns):
            lines.append(f"    ld.global.{MOVE[size]} {name}, [%rd{20 + k}];")
            instruction = instruction.replace(f"${'abc'[k]}", name)
        else:
            lines.append("    " + instruction.replace("$d", name))
            lines.append(f"    st.global.{MOVE[size]} [%rd{20 + k}], {name};")
    threads = -(-len(out) // 32) * 32
    guard = f"    setp.ge.u32 %p0, %r0, {len(out)};\n    @%p0 ret;\n"
    launch = emulate(guard + "\n".join(lines), *columns, out, threads=threads)
    assert not launch.problems
    return out
