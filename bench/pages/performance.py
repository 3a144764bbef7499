"""docs/performance.md from bench/records/; `python -m eblvm.bench.pages.performance` writes it, nobody types it."""

from pathlib import Path
from typing import Any

from eblvm.bench.measurements import (
    bidvl,
    compare_power,
    data,
    deep,
    freed_memory,
    grbm_parts,
    growth,
    growth_plot,
    ratios,
    subnormals,
    targets,
    traffic,
    vages,
)
from eblvm.bench.profiling import plot as profile_plot
from eblvm.bench.profiling import profile
from eblvm.bench.tools import records
from eblvm.engine import tables

DOCUMENT = records.SOURCE / "docs" / "performance.md"
COLUMNS = {
    "case": "case",
    "engine_ms": "engine ms",
    "baseline_ms": "baseline ms",
    "ratio": "ratio",
    "twin_ms": "twin ms",
    "floor_ms": "floor ms",
    "saved_mib": "saved MiB",
    "baseline_saved_mib": "baseline saved MiB",
    "peak_mib": "peak MiB",
    "baseline_peak_mib": "baseline peak MiB",
}
SUITES = {
    "grbm": "GRBM at Frey face's sizes (B=100, D=560, H=400)",
    "toy": "GRBM at the checkerboard's sizes (B=100, D=2, H=4); ten replicas are one step",
    "kernels": "Kernel ops against their reference",
}
TRAFFIC = """\
Counted in triton's interpreter from the addresses that the kernels' own tiles touch, float32, B=100, D=560, H=400: no
GPU was there, and no time is given. MiB counts an address once per launch, as a level-2 cache that holds the launch's
tensors does, for both paths: programs of one launch read W, or the samples, again from that cache. Unfused is torch's
products with a Triton kernel after each. With h given every tensor is touched once already: no path moves less. The
bi-level step has the recipe's K=N=5. With fewer steps fusing it saves less, since either path writes the tape.
Registers, spills, shared memory, occupancy and vector loads, compiled for compute capability 7.5 to 10.0: `eblvm doctor
--kernels`; `make kernels` holds them to no spills and vector loads.
"""
DEEP = """\
The deep EBLVM with 128 channels, 18 layers and 60 million parameters, batch 8. "to MDSM" is the price of a latent
variable: a step over that of MDSM on the fully visible model. "held" is what graphs hold between the score pass and the
loss's backward, here and at the published batch of 100; the latter and the gradient's peak are counted on the meta
device. The naive procedure draws fresh noise and recomputes the energy in every lower step.
"""
VAGES = """\
The naive procedure is VaGES's formula with one gradient for every sample of h, fresh noise and the energy recomputed in
every step on q and on h; its GRBM has the sampled KL, as published.
"""
DEEP_COLUMNS = {
    "case": "case",
    "ms": "ms",
    "to_mdsm": "to MDSM",
    "naive_ms": "naive ms",
    "ratio": "ratio",
    "held_mib": "held MiB",
    "held_published_mib": "held MiB, batch 100",
    "peak_published_mib": "peak MiB, batch 100",
}
DATA = """\
CelebA's pictures at half their published size, cut, and resized to 64 pixels. A decoder's and the store's figures are
pictures a second of CPU time with one thread; the ratio is to Pillow, of the store to the faster decoder. The row of
memory is the fetch of a minibatch against the step it feeds, as a percentage of it. The row of the stream is wall time:
what a minibatch takes with no step to hide behind, and the percentage of it that training hides.
"""
DATA_COLUMNS = {
    "case": "case",
    "images_per_s": "images/s",
    "ratio": "ratio",
    "input_ms": "input ms",
    "step_ms": "step ms",
    "percent": "%",
}
SUBNORMALS = """\
While q(h|v) learns, its tails shrink below 1.2e-38. Such numbers are subnormal, and a CPU takes many times as long for
each of their products. `eblvm train` computes with zero in their place, from its first step on.
"""
FREED = """\
glibc gives the end of its heap back to the system whenever that is free, and blocks of many megabytes at once; each
page of them then comes again as a fault, and cleared. `eblvm train` keeps what a step frees for the next one, and gives
it back when the run ends; where `MALLOC_...` or `GLIBC_TUNABLES` tune the heap, they decide. Every reading is a process
of its own. From the commit of this record on, all suites measure with memory kept, for every contestant.
"""
GROWTH = """\
One axis at a time. A figure is fitted by c + a x^p along its axis; a cell has p, and what theory says behind the slash.
Times are ratios to the axis's last value by round; in brackets is p's 90 % interval over rounds. Layers are fitted
without c: FLOPs have none there. 0 is a figure that moves by less than 5 %. Held is what graphs keep for a backward
pass; of a deep model the network's, which N and K leave as it is.
"""
GROWN = """\
![every figure over its first value, a panel per axis](growth.png)

The published CelebA64 network at more pixels, counted on the meta device; then steps on two threads beside one, in
wall time.
"""
BIDVL = """\
The published convolutional nets for CIFAR-10 (energy of 64, encoder and generator of 48 channels in their first layer),
offset opposite terms, one lower step. The naive step runs the generator once without a graph for the upper
level and once with one for the lower; it computes nothing that is not used, no gradient of weights that do not move,
and gives the same parameters after three steps in fp64. N counts unrolled lower steps, which the paper leaves out. The
second table says where the first case spends its time.
"""
BIDVL_COLUMNS = {
    "case": "case",
    "ms": "ms",
    "naive_ms": "naive ms",
    "ratio": "ratio",
    "saved_mib": "saved MiB",
    "naive_saved_mib": "naive saved MiB",
    "peak_mib": "peak MiB",
    "naive_peak_mib": "naive peak MiB",
}
PARTS = """\
The (fresh, Adam) step at K=5 and its parts, each timed alone, by turns; "of the step" is the median of the rounds'
ratios. The products are the floor of the table above; the rest is the pointwise loops over h and over residuals, the
sums and the calls, by difference. A checkerboard's step is mostly calls, which ten replicas share; of the time that
nine more add, the fused gradient takes most.
"""
TARGETS = """\
What the steps are held to on a CPU: each is a ratio of two steps by turns, and was measured twice. Products and
convolutions are those of the step beside them, alone, on operands of the same sizes.
"""
POWER = """\
A clone of the repository against itself, {minutes:g} minutes per comparison: as it is, and with a busy loop planted in
every step that makes it longer by {share:.0%}. A comparison fails where it sees a slow-down twice, with fresh
processes.
"""
SAMPLES = """
Eight more samples of h add {samples_add_ms:.1f} ms to a step of VaGES: read beside a network of two channels, which
leaves the rest of the step as it is. Readings of the deep steps themselves differ by more, by a tenth from process to
process.
"""
INTRODUCTION = """\
# Performance

Made from `bench/records/` by `python -m eblvm.bench.pages.performance`, with its pictures; change the records, not this
page.

Every time is the median CPU time of one step on one thread, contestants interleaved in one process; only ratios carry
over to other machines. The engine's step is the one that `eblvm train` takes with the case's configuration. The
baseline is `bench/naive`: the published procedure in plain `torch.autograd`, written to be no slower than it has to be,
with the noise redrawn and the energy recomputed in every lower step, and Adam unrolled. The ratio is baseline over
engine: above 1 the engine is faster. Where a case unrolls SGD, the twin is the naive procedure that does so as well.
The floor is the matrix products of the engine's algorithm, timed alone. Saved is the most that is held for backward at
once (by autograd graphs, or by the fused step's own tape), peak the most that is alive at once, scratch memory of the
fused step included, both beyond the step's inputs.
Files are those of `bench/records/`, the newest of each kind. Bytes, FLOPs and operators are counted again by the tests,
which fail where they have moved by more than 2 %; a time is as old as its commit. Before anything was timed, engine and
naive procedure gave the same gradient in fp64 for the same noise and the same optimisers.
"""


def render(folder: Path) -> str:
    """The document of all records of suites and profiles in `folder`."""
    parts = [INTRODUCTION]
    for suite, title in SUITES.items():
        for found in records.newest(folder, f"{suite}", ratios.SCHEMA):
            rows = [[row.get(name) for name in COLUMNS] for row in found["rows"]]
            heading = title + (", compiled" if found["compiled"] else "")
            parts.append(section(heading, found, tables.markdown(list(COLUMNS.values()), rows)))
    for found in records.newest(folder, "targets", targets.SCHEMA):
        added = SAMPLES.format(**found)
        parts.append(section("Targets", found, "\n".join((TARGETS, tables.markdown(*targets.table(found)), added))))
    for found in records.newest(folder, "parts-grbm", grbm_parts.SCHEMA):
        body = PARTS + "\n" + tables.markdown(*grbm_parts.table(found))
        parts.append(section("What a GRBM's step consists of", found, body))
    for found in records.newest(folder, "traffic", traffic.SCHEMA):
        rows = [[row[name] for name in traffic.COLUMNS] for row in found["rows"]]
        body = TRAFFIC + "\n" + tables.markdown(list(traffic.COLUMNS.values()), rows)
        parts.append(section("Triton kernels: launches and memory traffic at Frey face's sizes", found, body))
    for found in records.newest(folder, "deep*", deep.SCHEMA):
        rows = [[row[name] for name in DEEP_COLUMNS] for row in found["rows"]]
        body = DEEP + "\n" + tables.markdown(list(DEEP_COLUMNS.values()), rows)
        parts.append(section("Deep EBLVM at the width of the published CIFAR-10 model", found, body))
    for found in records.newest(folder, "subnormals", subnormals.SCHEMA):
        rows = [[row[name] for name in subnormals.COLUMNS] for row in found["rows"]]
        run = f"{found['recipe']}, {found['method']}, N={found['N']}, K={found['K']}"
        body = SUBNORMALS + "\n" + tables.markdown(list(subnormals.COLUMNS.values()), rows)
        parts.append(section(f"A late step: {run}", found, body))
    for found in records.newest(folder, "freed-memory", freed_memory.SCHEMA):
        body = FREED + "\n" + tables.markdown(*freed_memory.table(found))
        parts.append(section("Deep steps: freed memory is kept for the next one", found, body))
    for found in records.newest(folder, "vages", vages.SCHEMA):
        names = {name: title for name, title in DEEP_COLUMNS.items() if name in vages.COLUMNS} | {
            "peak_mib": "peak MiB"
        }
        rows = [[row[name] for name in names] for row in found["rows"]]
        body = VAGES + "\n" + tables.markdown(list(names.values()), rows)
        parts.append(section("VaGES on the same model, and on a GRBM at Frey face's sizes", found, body))
    for found in records.newest(folder, "data", data.SCHEMA):
        rows = [[row[name] for name in DATA_COLUMNS] for row in found["rows"]]
        body = DATA + "\n" + tables.markdown(list(DATA_COLUMNS.values()), rows)
        parts.append(section(f"Input: {found['pictures']} pictures", found, body))
    for found in records.newest(folder, "bidvl", bidvl.SCHEMA):
        rows = [[row[name] for name in BIDVL_COLUMNS] for row in found["rows"]]
        spent = [[kind, f"{100 * share:.1f} %"] for kind, share in found["profile"].items() if share >= 0.001]
        both = (tables.markdown(list(BIDVL_COLUMNS.values()), rows), tables.markdown(["operators", "share"], spent))
        parts.append(section("BiDVL with the published CIFAR-10 nets", found, "\n\n".join((BIDVL, *both))))
    for found in records.newest(folder, "compare-power", compare_power.SCHEMA):
        body = POWER.format(**found) + "\n" + tables.markdown(*compare_power.table(found))
        parts.append(section("How often 'eblvm bench compare' finds a slow-down", found, body))
    for found in records.newest(folder, "growth", growth.SCHEMA):
        shown = (growth.table(found), growth.large_table(found), growth.threads_table(found))
        first, *others = (tables.markdown(*part) for part in shown)
        parts.append(section("Growth", found, "\n\n".join((GROWTH, first, GROWN, *others))))
    parts += [profiled(found) for found in records.newest(folder, "profile-*", profile.SCHEMA)]
    return "\n".join(parts)


def section(title: str, found: dict[str, Any], body: str) -> str:
    machine, versions = found["machine"], found["versions"]
    where = ", ".join([machine.get("gpu", machine["cpu"]), f"{machine['cores']} cores", machine["system"]])
    what = ", ".join(f"{name} {version}" for name, version in versions.items())
    origin = f"`{found['command']}`, {found['date']}, commit {found['commit']}; {where}; {what}; `{found['file']}`."
    return f"## {title}\n\n{origin}\n\n{body}\n"


def profiled(found: dict[str, Any]) -> str:
    """Tables of a profile over its first two axes, or all of its rows where it has fewer, or series."""
    axes = profile.axes_of(found)
    parts = []
    if len(axes) == 2 and not any(row["series"] for row in found["rows"]):
        for figure, name in (("step_ms", "ms per step"), ("saved_mib", "saved MiB"), ("peak_mib", "peak MiB")):
            ys, xs, values = profile.surface(found, figure, *axes)
            rows = [[f"{axes[0]}={y}", *row] for y, row in zip(ys, values, strict=True)]
            parts.append(tables.markdown([name, *(f"{axes[1]}={x}" for x in xs)], rows))
    else:
        shown = [f for f in profile.FIGURES if any(row.get(f) is not None for row in found["rows"])]
        rows = [[row["series"] or "all", *(row.get(name) for name in (*axes, *shown))] for row in found["rows"]]
        parts.append(tables.markdown(["series", *axes, *shown], rows))
    picture = f"{found['name']}.png"
    if (DOCUMENT.parent / picture).exists():
        parts.append(f"![the same as a picture]({picture})")
    title = f"Profile of {found['recipe']}: {found['method']} on {found['model']}, batch {found['batch']}"
    return section(title, found, "\n\n".join(parts))


def main() -> None:
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(render(records.RECORDS))
    print(f"wrote {DOCUMENT.name}")
    for found in records.newest(records.RECORDS, "growth", growth.SCHEMA):
        growth_plot.plot(found, DOCUMENT.parent / "growth.png")
    for found in records.newest(records.RECORDS, "profile-*", profile.SCHEMA):
        if profile_plot.plot(found, path := DOCUMENT.parent / f"{found['name']}.png"):
            print(f"wrote {path.name}")


if __name__ == "__main__":
    main()
