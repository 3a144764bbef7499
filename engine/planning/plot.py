"""The picture of a plan."""

from pathlib import Path
from typing import Any

from eblvm.engine.plotting import save, styled, subplots


@styled
def plot(facts: dict[str, Any], path: Path) -> None:
    """Memory of a process against N, a line for every checkpointing and precision at the largest micro-batch."""
    figure, axes = subplots(figsize=(7, 4.5))
    lines: dict[str, dict[int, float]] = {}
    for row in facts["rows"]:
        line = lines.setdefault(f"{row['precision']}, checkpoint {row['checkpoint']}", {})
        line.setdefault(row["N"], row["total_mib"] / 1024)
    for name, line in lines.items():
        axes.plot(list(line), list(line.values()), "o-", label=name)
    if facts["memory_mib"] is not None:
        axes.axhline((facts["memory_mib"] - facts["reserved_mib"]) / 1024, color="black", linestyle=":", label="usable")
    over = f"batch {facts['batch']} over {facts['gpus']} processes"
    axes.set_title(f"Memory of a training step of {facts['recipe']}: {over}")
    ticks = sorted({row["N"] for row in facts["rows"]})
    axes.set(xlabel="N, unrolled steps", ylabel="GiB per process", ylim=(0, None), xticks=ticks)
    axes.legend()
    axes.grid()
    save(figure, path, of=facts["rows"])
