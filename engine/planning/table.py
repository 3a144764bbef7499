"""A plan as a table, and the command that follows from it."""

from __future__ import annotations

import re
from typing import Any

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import arguments

UNITS = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
COLUMNS = ("N", "checkpoint", "precision", "micro_batch", "state_mib", "saved_mib", "peak_mib", "total_mib", "tflop",
           "sent_mib", "fits")  # fmt: skip


def format_table(facts: dict[str, Any]) -> str:
    rows = facts["rows"]
    cells = [[_cell(row[name]) for name in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in (COLUMNS, *cells)) for i in range(len(COLUMNS))]
    lines = ["  ".join(x.rjust(w) for x, w in zip(line, widths, strict=True)) for line in (COLUMNS, *cells)]
    memory = facts["memory_mib"]
    head = (
        f"{facts['recipe']}: {rows[0]['parameters'] / 1e6:.1f} million parameters, batch {facts['batch']} over "
        f"{facts['gpus']}; per process and step"
    )
    if facts["replicas"] > 1:
        head += f", all {facts['replicas']} replicas together"
    if memory is not None:
        head += f"; fits: total and {facts['reserved_mib']:.0f} MiB in reserve within {memory:.0f} MiB"
    return "\n".join([head, *lines, f"use: {facts['command'] or 'more GPUs, or a smaller --batch: nothing fits'}"])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def command(config: Config, gpus: int) -> str:
    start = f"torchrun --nproc-per-node {gpus} -m eblvm" if gpus > 1 else "eblvm"
    given = arguments(config, without=("data", "device"))
    return " ".join([start, "train", config.recipe, "--data PATH --device cuda", *given])


def parse_bytes(text: str) -> int:
    """11GiB, 512 MiB, 8GB or a plain number of bytes."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found.group(2).upper() not in UNITS:
        raise UserError(f"got memory {text!r}, expected a number with a unit, such as 11GiB or 8000MB")
    return int(float(found.group(1)) * UNITS[found.group(2).upper()])
