"""docs/contest.md from bench/records/; `python -m eblvm.bench.pages.contest` writes it, nobody types it."""

from pathlib import Path
from typing import Any

from eblvm.bench.contest import contest
from eblvm.bench.pages.performance import section
from eblvm.bench.tools import records
from eblvm.engine import tables

DOCUMENT = records.SOURCE / "docs" / "contest.md"
TITLES = {
    "grbm": "GRBM at Frey face's sizes (B=100, D=560, H=400)",
    "toy": "GRBM at the checkerboard's sizes (B=100, D=2, H=4)",
    "deep": "Deep EBLVM with the lean network at 16 channels, and at 64 where a case says so; batch 8",
    "vages": "VaGES on a GRBM at Frey face's sizes",
    "bidvl": "BiDVL with nets of half the published width, batch 10",
    "data": "Input: 250 pictures per reading; and FID",
    "kernels": "Kernel ops",
}
COLUMNS = {
    "contestant": "contestant",
    "ms": "ms",
    "ratio": "to engine",
    "difference": "check",
    "saved_mib": "saved MiB",
    "peak_mib": "peak MiB",
}
STARTS = (
    "At 16 channels the start of an operator weighs as much as what it computes, and XLA compiles many into one. At 64 "
    "channels, below, the engine is faster."
)
PRODUCTS = (
    "Most of the step is matrix products. MKL, torch's library of them, leaves AMD's AVX-512 unused; XLA brings its "
    "own: see the product among the kernel ops."
)
REASONS = {  # of the cases where another was faster
    "method=cd": "Near a tie: both take the same six matrix products and differentiate by autograd. CD has no fused "
    "step as DSM and BiDSM have.",
    "method=bidsm noise=fresh divergence=kl unroll=adam N=0 K=5": PRODUCTS,
    "method=dsm": PRODUCTS,
    "product=100x560x400": "MKL leaves AMD's AVX-512 unused.",
    "method=mdsm": STARTS,
    "method=bimdsm noise=fresh N=0 K=5": STARTS,
    "method=mdsm checkpoint=blocks": "It recomputes what torch's checkpoint, in a score, holds all the same: see the "
    "saved MiB.",
    "method=bimdsm noise=fresh N=5 K=5 unroll_memory=recompute": "It computes every unrolled step again in its "
    "backward pass, where the others hold the graphs of all of them: see the peak.",
}
INTRODUCTION = """\
# The engine beside other libraries

Made from `bench/records/` by `python -m eblvm.bench.pages.contest`; change the records, not this page.

`eblvm bench SUITE --contestants` times the engine's step beside the same work done with another library's own means:
`bench/contestants` has a file for each. "To engine" is the contestant's CPU time over the engine's, the median of the
rounds' ratios, all contestants by turns in one process on one thread: above 1 the engine is faster, and rows where
it is not are **bold**. "Check" is the largest difference of theta's gradient (or of what the row computes) from the
engine's in fp64, on a small model, from the same parameters and for the same noise; beyond 1e-8 no time is reported
unless a note says why it deviates. Bytes are counted where torch sees the allocations.

`pip install 'eblvm[contestants]'` installs the libraries that are compatible with torch as it is.
Two are left out of it, as their metadata is not: `pip install --no-deps betty-ml` (its requirement `torch>=1.6.*` is
no valid version range for newer pips) and `pip install --no-deps torch-fidelity torchvision` (take the torchvision of
your torch's build: that of PyPI is built for CUDA, and a CPU build of torch cannot load it).
"""


def render(folder: Path) -> str:
    """The document of all contests in `folder`, in the order of the suites."""
    found = {one["suite"]: one for one in records.newest(folder, "contest-*", contest.SCHEMA)}
    return "\n".join([INTRODUCTION, *(suite(TITLES[name], found[name]) for name in TITLES if name in found)])


def suite(title: str, found: dict[str, Any]) -> str:
    parts = []
    if found["load"] is not None:
        parts.append(f"{found['rounds']} rounds; load average of the machine at the end {found['load']}.")
    for case in dict.fromkeys(row["case"] for row in found["rows"]):
        rows = [row for row in found["rows"] if row["case"] == case]
        parts.append(f"### {case}\n\n{tables.markdown(list(COLUMNS.values()), [cells(row) for row in rows])}")
        parts += [f"- {row['contestant']}: {row['note']}" for row in rows if row["note"]]
        if case in REASONS and any(row["ratio"] is not None and row["ratio"] < 1 for row in rows):
            parts.append(f"- Why the engine is slower: {REASONS[case]}")
    parts += [f"Absent: {sentence}." for sentence in found["absent"].values()]
    return section(title, found, "\n\n".join(parts))


def cells(row: dict[str, Any]) -> list[Any]:
    """The cells of a row; the name of one that beats the engine is bold."""
    difference = row["difference"]
    shown = {**row, "difference": None if difference is None else f"{difference:.0e}"}
    if row["ratio"] is not None and row["ratio"] < 1:
        shown["contestant"] = f"**{row['contestant']}**"
    return [shown[name] for name in COLUMNS]


def main() -> None:
    DOCUMENT.write_text(render(records.RECORDS))
    print(f"wrote {DOCUMENT.name}")


if __name__ == "__main__":
    main()
