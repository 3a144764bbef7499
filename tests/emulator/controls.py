"""Positive controls: a fault planted in a kernel, in its source or in what it was compiled to, which must be found."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from triton.runtime.jit import _triton_jit_function_registry

from eblvm.kernels.elu_second_order.triton import elu_kernel
from eblvm.kernels.grbm.triton_columns import latent_columns
from eblvm.kernels.grbm.triton_rows import rows_kernel, tile
from eblvm.kernels.grbm_bilevel.triton_lower import one_step
from eblvm.kernels.grbm_bilevel.triton_rate import rate_kernel
from tests.emulator import launches
from tests.emulator.kernels import cases
from tests.emulator.running import result_of


class Source(NamedTuple):
    """A change of a kernel, or of a function in it."""

    function: Any
    old: str
    new: str
    times: int = -1  # all of them


class Ptx(NamedTuple):
    """A change of the first matches in what a kernel was compiled to."""

    old: str
    new: str
    times: int = 1  # 0: all of them


class Control(NamedTuple):
    case: str
    edit: Source | Ptx
    found: str  # in a problem's words


FREE = "grbm free energy: fp32 ieee 33x57x41, cc 80"
SPLIT = "grbm_dsm: fp32 ieee 35x57x41 2 replicas split 3, cc 80"
GIBBS = "gibbs: fp32 ieee 33x57x41 drawn, cc 80"
BILEVEL = "grbm_bilevel: fp32 ieee 33x37x21, cc 80"
VECTORS = "elu_second_order: fp32 ieee (8, 512), cc 80"
ELU = "elu_second_order: fp32 ieee (33, 257), cc 80"
RATE = "grbm_bilevel rate: fp32 ieee 63 samples, cc 80"
WARPGROUP = "grbm free energy: fp32 tf32 33x57x41, cc 90"

OUTSIDE, WRONG, UNWRITTEN = "access out of bounds of every tensor", "error of ", "read of what nobody wrote"
RACE = "race: read of what another thread writes, global"
VECTOR_LOAD = r"(ld\.global\.v4\.b32 [^[]*\[ %rd\d+ \+ )0"  # its offset
BARRIER = r"bar\.sync\s+0;"
# Where the source has a barrier the compiler often has one too: those of the sweeps go together.
CONTROLS: dict[str, Control] = {
    "a mask of rows": Control(FREE, Source(tile, "(i < rows)[:, None] & ", ""), OUTSIDE),
    "a mask of the last elements": Control(ELU, Source(elu_kernel, "keep = i < size", "keep = i >= 0"), OUTSIDE),
    "a barrier": Control(RATE, Source(rate_kernel, "tl.debug_barrier()", "pass"), RACE),
    "a barrier of the compiler's": Control(FREE, Ptx(BARRIER, ""), "race: write to what another thread reads, shared"),
    "the barriers of the sweeps": Control(GIBBS, Ptx(BARRIER, "", 0), RACE),
    "a wait for a copy": Control(FREE, Ptx(r"cp\.async\.wait_group\s+\d+;", ""), WRONG),
    "a wait for a product": Control(
        WARPGROUP, Ptx(r"wgmma\.wait_group[^;]*;", "", 0), "before the wait for its product"
    ),
    "the order of a ticket": Control(SPLIT, Source(rows_kernel, '"acq_rel"', '"relaxed"'), "hazard between programs"),
    "a gradient's sign": Control(FREE, Source(latent_columns, "slope * t", "slope * -t"), WRONG),
    "alignment": Control(
        VECTORS, Ptx(r"(ld\.global\.v4\.b32 [^[]*\[ %rd\d+ \+ )0", r"\g<1>4"), "misaligned access of 16"
    ),
    "a value that is read": Control(
        BILEVEL, Source(one_step, "put(delta_ptr,", "(delta_ptr,"), "read of what nobody wrote"
    ),
    "a place of one's own": Control(
        ELU,
        Source(elu_kernel, "tl.program_id(0).to", "(tl.program_id(0) // 2).to"),
        "hazard between programs: write to what another thread writes",
    ),
}


def problems_of(control: Control) -> list[str]:
    """Return what is found with the fault."""
    with planted(control.edit):
        return result_of(cases()[control.case])["problems"]


@contextmanager
def planted(edit: Source | Ptx) -> Iterator[None]:
    forget_hashes()
    try:
        with in_source(edit) if isinstance(edit, Source) else in_ptx(edit):
            yield
    finally:
        forget_hashes()


@contextmanager
def in_source(edit: Source) -> Iterator[None]:
    source = edit.function.src
    assert edit.old in source, f"{edit.old!r} is not in {edit.function.__name__}: change the control"
    edit.function._unsafe_update_src(source.replace(edit.old, edit.new, edit.times))
    try:
        yield
    finally:
        edit.function._unsafe_update_src(source)


@contextmanager
def in_ptx(edit: Ptx) -> Iterator[None]:
    parse: Callable[[str], Any] = launches.parse
    changed = []

    def parse_edited(ptx: str) -> Any:
        text, number = re.subn(edit.old, edit.new, ptx, count=edit.times)
        changed.append(number)
        return parse(text)

    with patch.object(launches, "parse", parse_edited):
        yield
    assert any(changed), f"{edit.old!r} is in no kernel: change the control"


def forget_hashes() -> None:
    """Kernels are compiled anew, those too that call an edited function."""
    for function in _triton_jit_function_registry.values():
        function.hash = None
