"""A worker process of one version, as `eblvm bench compare` asks it."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from eblvm.bench.tools import worker
from eblvm.bench.tools.building import last_lines
from eblvm.engine.errors import UserError

# An editable install puts a finder before sys.path; without it the worker's own folder is found first.
BOOT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, sys.argv[1])
from eblvm.bench.tools.worker import main
main()
"""
NUMBER = itertools.count()


def worker_command(site: Path) -> list[str]:
    return [sys.executable, "-c", BOOT, str(site)]


class Version:
    """`with Version(...) as v`: the process ends with the block, at once if the block fails."""

    def __init__(self, name: str, site: Path, root: Path, command: list[str] | None = None, **environment: str):
        self.name, self.site = name, site
        self.extras: tuple[str, ...] = ()
        self.log = root / f"worker-{next(NUMBER)}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command or worker_command(site), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True, cwd=site, env=os.environ | environment, start_new_session=True,
            )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"{self.name} cannot be measured: {last_lines(self.log.read_text())}")
        return json.loads(line)

    def open(self, suite: str) -> list[str]:
        answer = self.ask(do="open", suite=suite)
        if answer["protocol"] != worker.PROTOCOL:
            raise UserError(
                f"{self.name} measures by protocol {answer['protocol']}, this version by {worker.PROTOCOL}; "
                "compare with a commit of the same protocol"
            )
        if Path(answer["source"]).resolve() != self.site.resolve():
            raise RuntimeError(f"the worker of {self.name} loaded another installation of the engine")
        self.extras = tuple(answer.get("extras", ()))
        return answer["cases"]

    def __enter__(self) -> "Version":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if kind is not None:
            self.process.kill()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def cases_of_both(base: Version, head: Version, suite: str, only: str) -> list[str]:
    of_base = base.open(suite)
    of_head = head.open(suite)
    if dropped := [name for name in of_base if name not in of_head]:
        raise UserError(
            f"head has no case {dropped[0]!r} of suite {suite!r}, which {base.name} has; keep it, or rename both"
        )
    both = [name for name in of_head if name in of_base]
    if not both:
        raise UserError(f"{base.name} and head have no case of suite {suite!r} in common; choose another --suite")
    if not (chosen := [name for name in both if any(part in name for part in only.split(","))]):
        raise UserError(f"no case of suite {suite!r} contains {only!r}; its first is {both[0]!r}")
    return chosen
