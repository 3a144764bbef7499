"""The instruction counts of `eblvm bench compare`, and one sentence about how they were made or why not."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from eblvm.bench.tools import instructions
from eblvm.bench.tools.building import Say
from eblvm.bench.tools.version import Version, worker_command

if TYPE_CHECKING:
    from eblvm.bench.tools.compare import Measured


def count(how: str, sites: dict[str, Path], root: Path, suite: str, measured: dict[str, "Measured"], say: Say) -> str:
    """Put `instructions` into both versions' figures. auto: the processor's counter, which the workers have read."""
    if how == "callgrind":
        return by_callgrind(sites, root, suite, measured, say)
    if how == "no":
        for m in measured.values():
            m.base.pop("instructions", None)
        return "instructions: not compared"
    if all(m.base.get("instructions") and m.head.get("instructions") for m in measured.values()):
        return "instructions: by the processor's counter"
    if instructions.counted():
        return "instructions: not compared; base is older than their count"
    valgrind = "--instructions callgrind counts them under valgrind, in minutes"
    other = valgrind if instructions.has_callgrind() else "and valgrind is not installed"
    return f"instructions: not compared; this machine does not give the processor's counter; {other}"


def by_callgrind(sites: dict[str, Path], root: Path, suite: str, measured: dict[str, "Measured"], say: Say) -> str:
    """Count both versions at the same time: load does not change a count."""
    if not instructions.has_callgrind():
        return "instructions: not compared; install valgrind, or remove --instructions callgrind"
    say("starting both under callgrind: a minute or two")
    with contextlib.ExitStack() as stack:
        versions = []
        for name, site in sites.items():
            folder = root / f"callgrind-{site.name}"
            folder.mkdir()
            under = instructions.callgrind(worker_command(site), folder)
            versions.append((stack.enter_context(Version(name, site, root, None, under)), folder))
        for version, _ in versions:
            version.open(suite)
            if "repeat" not in version.extras:
                return f"instructions: not compared; {version.name} is older than their count"
            for case in measured:
                version.ask(do="repeat", case=case, count=2)
            instructions.control(version.pid, "-i", "on")
        for case, m in measured.items():
            for figures, (version, folder) in zip((m.base, m.head), versions, strict=True):

                def take_steps(steps: int, version: Version = version, case: str = case) -> None:
                    version.ask(do="repeat", case=case, count=steps)

                take_steps(1)
                figures["instructions"] = instructions.callgrind_per_step(take_steps, version.pid, folder)
    return "instructions: under callgrind"
