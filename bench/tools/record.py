"""A measurement with the machine, versions and commit it was made on, as JSON. Host names and paths stay out."""

import datetime
import json
import os
import platform
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

from eblvm.bench.tools.records import SOURCE, Record
from eblvm.engine.errors import UserError
from eblvm.engine.versions import versions

MEASURED = ("engine", "kernels", "bench", "pyproject.toml", "CMakeLists.txt", ":!bench/records")


def machine(device: str = "cpu") -> dict[str, Any]:
    facts = {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
    if torch.device(device).type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or "unknown"


@cache
def commit() -> str:
    """The short commit of the source when this is first called, which commands do before they measure; with '-dirty' if
    the code differs from it; 'unknown' outside git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", SOURCE, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", *MEASURED) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def make(schema: str, name: str, command: str, device: str, body: dict[str, Any]) -> Record:
    return {
        "schema": schema,
        "name": name,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": machine(device),
        "versions": versions(device),
        "commit": commit(),
        **body,
    }


def write(record: Record, path: Path) -> Path:
    """Write to `path`; into a folder, or a `.jsonl` file, after the records of the same name. The path written to."""
    if path.is_dir():
        path = path / f"{record['name']}.jsonl"
    try:
        if path.suffix == ".jsonl":
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        else:
            path.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); give --json a file in a folder that exists") from None
    return path
