"""A measurement with the machine, versions and commit it was made on, as JSON. Host names and paths stay out.

bench/records/ holds the newest of each kind, which the pages show; those before it lie in superseded/."""

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

from eblvm.engine.errors import UserError
from eblvm.engine.versions import versions

SOURCE = Path(__file__).resolve().parents[2]  # the repository of an editable install
RECORDS = Path(__file__).resolve().parents[1] / "records"
SUPERSEDED = "superseded"
MEASURED = ("engine", "kernels", "bench", "pyproject.toml", "CMakeLists.txt", ":!bench/records")


def machine(device: str = "cpu") -> dict[str, Any]:
    facts = {"cpu": cpu_model(), "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"}
    if torch.device(device).type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def cpu_model() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or "unknown"


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


def make(schema: str, name: str, command: str, device: str, body: dict[str, Any]) -> dict[str, Any]:
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


def write(record: dict[str, Any], path: Path) -> Path:
    """Write to `path`; into a folder under the name NAME-CPU-DATE-COMMIT.json."""
    if path.is_dir():
        facts = record["machine"]
        slug = re.sub(r"[^a-z0-9]+", "-", facts.get("gpu", facts["cpu"]).lower()).strip("-")
        path = path / f"{record['name']}-{slug}-{record['date']}-{record['commit']}.json"
        supersede(record, path)
    try:
        path.write_text(json.dumps(record, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); give --json a file in a folder that exists") from None
    return path


def kind(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a newer record must share to take an older one's place."""
    return record["schema"], record["name"], record.get("compiled", False), "gpu" in record["machine"]


def supersede(record: dict[str, Any], path: Path) -> None:
    """Move the records that this one, to be written at `path`, takes the place of to superseded/ beside it."""
    for old in path.parent.glob(f"{record['name']}-*.json"):
        found = json.loads(old.read_text())
        if old != path and "machine" in found and kind(found) == kind(record):
            (path.parent / SUPERSEDED).mkdir(exist_ok=True)
            old.rename(path.parent / SUPERSEDED / old.name)


def read_all(folder: Path, pattern: str, schema: str) -> list[dict[str, Any]]:
    """The records of a kind in a folder, by name; each with its `file`."""
    return [read(path, schema) | {"file": path.name} for path in sorted(folder.glob(pattern))]


def read(path: Path, schema: str) -> dict[str, Any]:
    """The record at `path`, or an error that names the file and what is wrong with it."""
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise UserError(
            f"record {path} cannot be read ({error.strerror}); give the path of an existing record"
        ) from None
    except ValueError as error:
        raise UserError(f"record {path} is not valid JSON ({error}); make it again") from None
    got = record.get("schema", "none") if isinstance(record, dict) else "none"
    if got != schema:
        raise UserError(
            f"record {path} has schema {got!r}, expected {schema!r}; another version wrote it: make it again"
        )
    return record
