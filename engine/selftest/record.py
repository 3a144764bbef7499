"""All checks of a GPU, and the record of them, which a user can send."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from eblvm.engine.machine import own_device
from eblvm.engine.selftest.costs import costs
from eblvm.engine.selftest.decoder import decoder
from eblvm.engine.selftest.finding import Finding, verdict
from eblvm.engine.selftest.isolation import isolated
from eblvm.engine.selftest.kernels import kernels
from eblvm.engine.selftest.processes import processes
from eblvm.engine.selftest.replays import replays
from eblvm.engine.selftest.steps import steps
from eblvm.engine.versions import versions

GROUPS = (kernels, steps, replays, processes, decoder, costs)
SEND = "send the record that --json FILE writes, in an issue 'GPU report'"
MEND = "trust no run on this GPU, and send the record that --json FILE writes, in an issue 'GPU report'"


def report(keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run all checks on this process's GPU, print each and the verdict, and return the record.

    It is kept before every check, with its name: a machine may not survive one."""
    device = own_device("cuda")
    record = machine(device) | {"findings": [], "running": None, "verdict": None}
    found: list[Finding] = []
    for finding in isolated(GROUPS, device, lambda name: keep(record | {"running": name})):
        found.append(finding)
        record["findings"].append(finding._asdict() | {"passed": finding.passed})
        print(line(finding), flush=True)
    record["verdict"] = verdict(found, record["gpu"], SEND, MEND)
    print(record["verdict"])
    keep(record)
    return record


def line(finding: Finding) -> str:
    """Return a finding as it is printed."""
    mark = "ok  " if finding.passed else "FAIL"
    figure = "-" if finding.figure is None else f"{finding.figure:.3g}"
    bound = "" if finding.bound is None else f" (at most {finding.bound:.2g})"
    problem = "\n" + finding.problem.strip() if finding.problem else ""
    return f"{mark} {finding.check:48} {figure} {finding.unit}{bound}" + problem.replace("\n", "\n     ")


def machine(device: str) -> dict[str, Any]:
    """Return what the figures depend on."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "schema": "eblvm-gpu/2",
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_mib": properties.total_memory // 2**20,
        "gpus": torch.cuda.device_count(),
        "driver": driver(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "platform": platform.platform(),
        "versions": versions(device),
    }


def driver() -> str | None:
    """Return the version of NVIDIA's driver, None if its tool does not say."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    try:
        asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(said.splitlines()), None)
