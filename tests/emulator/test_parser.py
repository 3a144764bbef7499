"""PTX as LLVM and Triton write it."""

import pytest

from tests.emulator.parser import Address, Constant, Group, Parameter, Register, Symbol, UnknownPtxError, parse

TEXT = """
.version 8.7
.target sm_90a
.extern .shared .align 16 .b8 global_smem[];
.visible .entry add(
	.param .u64 .ptr .global .align 1 add_param_0,
	.param .u32 add_param_1,
	.param .align 8 .b8 add_param_2[24]
)
.reqntid 128
{
	.reg .pred 	%p<3>;
	.reg .b32 	%r<7>; // a comment; with a semicolon
	.reg .b64 	%rd<3>;
	.loc	1 17 0
$L__func_begin0:
	ld.param.b64 	%rd1, [add_param_0];
	@!%p1 bra 	$L__BB0_2;
	// begin inline asm
	mov.u32 %r1, %r2;
	@%p2 ld.global.v2.b32 { %r1, _ }, [ %rd1 + -8 ];
	// end inline asm
	{
	.reg .b32 half;
	mov.b64 {half, %r3}, %rd1;
	}
	{ .reg .b64 half; mov.b64 half, %rd1; }
$L__BB0_2:
	.pragma "nounroll";
	shfl.sync.bfly.b32 	%r4|%p1, %r3, 0x10, 31, -1;
	st.shared.b32 	[global_smem+16], 0f3F800000;
	ret;
$L__func_end0:
}
	.file	1 "some/where/kernel.py"
	.section	.debug_macinfo	{	}
"""


def test_a_program() -> None:
    program = parse(TEXT)
    assert (program.name, program.target) == ("add", 90)
    assert list(program.parameters.values()) == [Parameter(0, 8), Parameter(8, 4), Parameter(16, 24)]
    load, jump, move, guarded, unpack, again, shuffle, store, _ = program.instructions
    assert load.opcode == "ld.param.b64"
    assert load.operands == (Register("%rd1"), Address(Symbol("add_param_0"), 0))
    assert load.source == "kernel.py:17"
    assert jump.guard == Register("%p1", negated=True)
    assert program.labels["$L__BB0_2"] == program.instructions.index(shuffle)
    assert move.operands == (Register("%r1"), Register("%r2"))
    assert guarded.operands == (Group((Register("%r1"), Symbol("_"))), Address(Register("%rd1"), -8))
    assert shuffle.operands == (
        Group((Register("%r4"), Register("%p1"))), Register("%r3"), Constant("0x10"), Constant("31"), Constant("-1"),
    )  # fmt: skip
    assert store.operands == (Address(Symbol("global_smem"), 16), Constant("0f3F800000"))
    # Two registers of the same name in scopes of their own.
    half, other = unpack.operands[0].parts[0], again.operands[0]
    assert half != other
    assert (program.registers[half.name], program.registers[other.name]) == (32, 64)


def test_the_smallest_element_of_a_memory() -> None:
    assert parse(TEXT).sizes_of_accesses("global") == {4}
    assert parse(TEXT.replace("global.v2.b32", "global.v2.b16")).sizes_of_accesses("global") == {2}


@pytest.mark.parametrize(
    ("change", "error"),
    [(("%r<7>", "%r<7>; .weird x"), "weird"), ((".entry", ".func"), "entry")],
)
def test_what_is_not_understood_is_an_error(change: tuple[str, str], error: str) -> None:
    with pytest.raises(UnknownPtxError, match=error):
        parse(TEXT.replace(*change))
