"""What launches cost at the sizes of real runs, and what they may cost: sectors for a byte, programs, instructions.

The counts depend on the kernels and on Triton alone, so they are recorded and compared as they are.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from eblvm.kernels import philox
from eblvm.kernels.philox import triton as philox_triton
from eblvm.kernels.philox.reference import Kind
from eblvm.kernels.runtime.triton_report import ptxas_log
from tests.emulator.counters import Traffic
from tests.emulator.kernels import pointwise
from tests.emulator.kernels.case import BF16, BF16X3, FP64, IEEE, TF32, Case, Numbers, doubled
from tests.emulator.kernels.products import PARTS, bilevel_case, gibbs_case, grbm_case
from tests.emulator.launches import Launched
from tests.emulator.running import emulated
from tests.kernels import adam_cases
from tests.kernels.interpreted.check_grbm_bilevel import MODES

SIZE = B, D, H = 100, 560, 400  # of Frey face
PICTURES = (16, 128, 16, 16)  # of a layer of a deep model
MULTIPROCESSORS = 108  # of an A100
MOST_SECTORS = 1.2  # bytes of sectors for a byte that was asked for

_ROWS = "7 blocks of samples and at most 8 parts of H: by the model of tiles, more parts move more than programs gain"
_COLUMNS = "blocks of W's columns, each of which makes its part of B x H again: smaller ones make more products"
_SUMS = "a program has 32 columns of a replica and all samples, so that sums need no atomics"
# Launches of fewer programs than MULTIPROCESSORS at these sizes: why.
FEW_PROGRAMS = {
    ("grbm free energy", "rows_kernel"): _ROWS,
    ("grbm free energy", "columns_kernel"): _COLUMNS,
    ("grbm energy", "rows_kernel"): _ROWS,
    ("grbm energy", "columns_kernel"): _COLUMNS,
    ("grbm_dsm", "rows_kernel"): _ROWS,
    ("grbm_dsm", "columns_kernel"): _COLUMNS,
    ("grbm_dsm", "latent_kernel"): "a program for each sample",
    ("grbm_dsm", "residual_kernel"): _SUMS,
    ("grbm_dsm", "latent_first_kernel"): _SUMS,
    ("sliced_hvp", "rows_kernel"): _ROWS,
    ("sliced_hvp", "columns_kernel"): _COLUMNS,
    (
        "grbm_bilevel",
        "lower_kernel",
    ): "a program runs all steps of 16 latent units, without waiting for another",
    ("grbm_bilevel", "reverse_kernel"): "the same in reverse, and blocks of visible units",
    ("grbm_bilevel", "residual_kernel"): "with bf16x3 tiles of 16 samples and 64 columns; the launch is short",
    ("gibbs", "sweeps_kernel"): "a program runs all sweeps of 16 chains",
    ("bernoulli_lower", "lower_kernel"): "a program for each sample",
    ("adam_unroll lists", "norm_kernel"): "the sum of what the programs before it summed",
}


class Row(NamedTuple):
    """One kernel of a case; where it is launched several times, all together, and the fewest programs."""

    case: str
    kernel: str
    capability: int
    error: float
    problems: int
    programs: int
    registers: int
    spill_bytes: int
    sectors: float  # bytes of sectors for a byte that was asked for
    instructions: float  # of threads, for a multiply-add of the case; for a number written if it has none
    issue_clocks: int  # at least, on MULTIPROCESSORS with four schedulers


def budgeted() -> dict[str, Case]:
    """Return the cases with a budget."""
    every = [*products(), *without_products()]
    return {f"{case.part}: {case.numbers.name}, cc {case.capability}": case for case in every}


CHEAP = (
    "elu_second_order",
    "bernoulli_lower",
    "adam_unroll",
    "philox",
    "grbm_dsm: bf16, cc 80",
)  # in 'make test'


def products() -> Iterator[Case]:
    for part, numbers in itertools.product(PARTS, (IEEE, BF16X3, BF16)):
        yield grbm_case(part, numbers, SIZE, 80)
    for numbers, capability in ((TF32, 80), (FP64, 80), (TF32, 90), (BF16X3, 90)):
        yield grbm_case("grbm_dsm", numbers, SIZE, capability)
    for numbers in (IEEE, BF16X3):
        yield bilevel_case(numbers, 80, "100x560x400", SIZE, 2, 2, MODES[0])
    yield gibbs_case(IEEE, "drawn", SIZE, 80, fits=True)


def without_products() -> Iterator[Case]:
    for numbers in (IEEE, BF16, FP64):
        yield pointwise.elu_case(numbers, PICTURES, 80)
    yield pointwise.lower_case(IEEE, (B, H), "given", 80)
    for numbers in (IEEE, FP64):
        yield pointwise.adam_case(numbers, (H, D), (), 80)
        yield lists(numbers)
    yield draws()


def lists(numbers: Numbers) -> Case:
    """The parameters of a GRBM and its posterior."""

    def given() -> Any:
        inputs = [adam_cases.inputs(size, numbers.dtype) for size in ((D, H), (D,), (H,), (D,), (H, D), (H,))]
        return [[x[k] for x in inputs] for k in range(4)], inputs[0][4] - 1, inputs[0][5]

    launch, expected = (lambda given, of=of: of(*given) for of in (pointwise.list_orders, pointwise.lists_expected))
    return Case("adam_unroll lists", "of a GRBM", 80, numbers, given, launch, expected)


def draws() -> Case:
    def given() -> Any:
        return torch.tensor([7]), 3, pointwise.PURPOSE, B, D, 0, int(Kind.NORMAL)

    launch, expected = (lambda given, op=op: op.philox(*given) for op in (philox_triton, philox.reference))
    return Case("philox", "a batch", 80, IEEE, given, launch, expected)


def rows_of(name: str, case: Case) -> list[Row]:
    """Emulate a case and count."""
    emulator, error = emulated(case)
    work = work_of(case)
    by_kernel: dict[str, list[Launched]] = {}
    for launched in emulator.launches:
        by_kernel.setdefault(launched.kernel, []).append(launched)
    return [row_of(name, kernel, launches, error, work) for kernel, launches in by_kernel.items()]


def work_of(case: Case) -> int:
    """Return the multiply-adds of the reference's products, or the numbers that it returns."""
    with FlopCounterMode(display=False) as counted:
        results = case.expected(doubled(case.given()))
    numbers = sum(t.numel() for t in tree_leaves(results) if isinstance(t, Tensor))
    return counted.get_total_flops() // 2 or numbers


def row_of(name: str, kernel: str, launches: list[Launched], error: float, work: int) -> Row:
    logs = [ptxas_log(one.ptx, one.capability, fp_fusion=one.metadata.enable_fp_fusion) for one in launches]
    return Row(
        case=name,
        kernel=kernel,
        capability=launches[0].capability,
        error=error,
        problems=sum(len(one.problems) for one in launches),
        programs=min(one.counts.programs for one in launches),
        registers=max(int(re.findall(r"Used (\d+) registers", log)[-1]) for log in logs),
        spill_bytes=sum(int(n) for log in logs for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log)),
        sectors=round(sectors([t for one in launches for t in (one.counts.loads, one.counts.stores)]), 3),
        instructions=float(f"{32 * sum(one.counts.total for one in launches) / work:.4g}"),
        issue_clocks=round(sum(one.counts.issue_bound(MULTIPROCESSORS) for one in launches)),
    )


def sectors(traffic: list[Traffic]) -> float:
    return Traffic(
        sectors=sum(t.sectors for t in traffic), useful_bytes=sum(t.useful_bytes for t in traffic)
    ).sectors_per_useful_byte
