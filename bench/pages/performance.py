"""The figures of docs/performance.md, and its pictures."""

from collections.abc import Mapping
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
from eblvm.bench.pages import emulator
from eblvm.bench.pages.templates import Notes
from eblvm.bench.profiling import plot as profile_plot
from eblvm.bench.profiling import profile
from eblvm.bench.tools import columns, records
from eblvm.bench.tools.records import Record
from eblvm.engine import tables

RATIOS = {
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
DEEP = {
    "case": "case",
    "ms": "ms",
    "to_mdsm": "to MDSM",
    "naive_ms": "naive ms",
    "ratio": "ratio",
    "held_mib": "held MiB",
    "held_published_mib": "held MiB, batch 100",
    "peak_published_mib": "peak MiB, batch 100",
}
VAGES = {name: title for name, title in DEEP.items() if name != "peak_published_mib"} | {"peak_mib": "peak MiB"}
DATA = {
    "case": "case",
    "images_per_s": "images/s",
    "ratio": "ratio",
    "input_ms": "input ms",
    "step_ms": "step ms",
    "percent": "%",
}
BIDVL = {
    "case": "case",
    "ms": "ms",
    "naive_ms": "naive ms",
    "ratio": "ratio",
    "saved_mib": "saved MiB",
    "naive_saved_mib": "naive saved MiB",
    "peak_mib": "peak MiB",
    "naive_peak_mib": "naive peak MiB",
}


def origin(record: Record) -> str:
    """The command, date, commit, machine and versions of a record, and its file."""
    machine, versions = record["machine"], record["versions"]
    where = ", ".join([machine.get("gpu", machine["cpu"]), f"{machine['cores']} cores", machine["system"]])
    what = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"`{record['command']}`, {record['date']}, commit {record['commit']}; {where}; {what}; `{record['file']}`."


def columns_of(names: Mapping[str, str], record: Record) -> dict[str, str]:
    return {"origin": origin(record), "table": tables.markdown(*columns.table(names, record))}


def table_of(measurement: Any, record: Record) -> dict[str, str]:
    return {"origin": origin(record), "table": tables.markdown(*measurement.table(record))}


def ratio_figures(record: Record, notes: Notes) -> dict[str, str]:
    return columns_of(RATIOS, record) | {"compiled": ", compiled" if record["compiled"] else ""}


def targets_figures(record: Record, notes: Notes) -> dict[str, str]:
    return table_of(targets, record) | {"samples_add_ms": f"{record['samples_add_ms']:.1f}"}


def subnormals_figures(record: Record, notes: Notes) -> dict[str, str]:
    run = f"{record['recipe']}, {record['method']}, N={record['N']}, K={record['K']}"
    return table_of(subnormals, record) | {"run": run}


def data_figures(record: Record, notes: Notes) -> dict[str, str]:
    return columns_of(DATA, record) | {"pictures": str(record["pictures"])}


def bidvl_figures(record: Record, notes: Notes) -> dict[str, str]:
    spent = [[kind, f"{100 * part:.1f} %"] for kind, part in record["profile"].items() if part >= 0.001]
    return columns_of(BIDVL, record) | {"operators": tables.markdown(["operators", "share"], spent)}


def power_figures(record: Record, notes: Notes) -> dict[str, str]:
    return table_of(compare_power, record) | {
        "minutes": f"{record['minutes']:g}",
        "slow_down": f"{record['share']:.0%}",
    }


def growth_figures(record: Record, notes: Notes) -> dict[str, str]:
    large, threads = (tables.markdown(*part(record)) for part in (growth.large_table, growth.threads_table))
    return table_of(growth, record) | {"large": large, "threads": threads}


def profile_figures(record: Record, notes: Notes) -> dict[str, str]:
    """Tables of a profile over its first two axes, or all of its rows where it has fewer, or series."""
    axes = profile.axes_of(record)
    parts = []
    if len(axes) == 2 and not any(row["series"] for row in record["rows"]):
        for figure, name in (("step_ms", "ms per step"), ("saved_mib", "saved MiB"), ("peak_mib", "peak MiB")):
            ys, xs, values = profile.surface(record, figure, *axes)
            rows = [[f"{axes[0]}={y}", *row] for y, row in zip(ys, values, strict=True)]
            parts.append(tables.markdown([name, *(f"{axes[1]}={x}" for x in xs)], rows))
    else:
        shown = [f for f in profile.FIGURES if any(row.get(f) is not None for row in record["rows"])]
        rows = [[row["series"] or "all", *(row.get(name) for name in (*axes, *shown))] for row in record["rows"]]
        parts.append(tables.markdown(["series", *axes, *shown], rows))
    picture = f"{record['name']}.png"
    return {
        "origin": origin(record),
        "tables": "\n\n".join(parts),
        "picture": f"![the same as a picture]({picture})" if (records.SOURCE / "docs" / picture).exists() else "",
        **{name: str(record[name]) for name in ("recipe", "method", "model", "batch")},
    }


FIGURES = {
    ratios.SCHEMA: ratio_figures,
    targets.SCHEMA: targets_figures,
    grbm_parts.SCHEMA: lambda record, notes: table_of(grbm_parts, record),
    traffic.SCHEMA: lambda record, notes: table_of(traffic, record),
    emulator.SCHEMA: lambda record, notes: table_of(emulator, record),
    deep.SCHEMA: lambda record, notes: columns_of(DEEP, record),
    subnormals.SCHEMA: subnormals_figures,
    freed_memory.SCHEMA: lambda record, notes: table_of(freed_memory, record),
    vages.SCHEMA: lambda record, notes: columns_of(VAGES, record),
    data.SCHEMA: data_figures,
    bidvl.SCHEMA: bidvl_figures,
    compare_power.SCHEMA: power_figures,
    growth.SCHEMA: growth_figures,
    profile.SCHEMA: profile_figures,
}


def pictures(folder: Path) -> dict[str, Record]:
    """The pictures of the page by file name, and the records that they show."""
    drawn = records.newest(folder, "growth", growth.SCHEMA) + records.newest(folder, "profile-*", profile.SCHEMA)
    return {f"{record['name']}.png": record for record in drawn}


def draw(record: Record, path: Path) -> None:
    (growth_plot if record["schema"] == growth.SCHEMA else profile_plot).plot(record, path)
