"""Worker processes of the versions that `eblvm bench compare` measures.

They are forked from a process that has imported torch and nothing of ours: a start needs a second instead of five, and
both versions have the same luck with torch's place in memory. After some launches there is a new one, with other luck.
"""

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from eblvm.bench.tools import worker
from eblvm.bench.tools.building import last_lines
from eblvm.engine.errors import UserError

# An editable install puts a finder before sys.path; without it the worker's own folder comes first.
WORK = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, {site})
from eblvm.bench.tools.worker import main
main()
"""
# For each message, a folder with three open files: a child that works there, and its number as the answer.
FORK = """
import os, signal, socket, sys
import torch, torch._dynamo
parent = socket.socket(fileno=int(sys.argv[1]))
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
parent.send(b"ready")
while True:
    site, files, _, _ = socket.recv_fds(parent, 65536, 3)
    if not site:
        break
    number = os.fork()
    if number == 0:
        parent.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        sys.stdin = open(0)
        os.chdir(site)
        exec(sys.argv[2].format(site=repr(site.decode())))
        os._exit(0)
    for file in files:
        os.close(file)
    parent.send(str(number).encode())
"""
NUMBER = itertools.count()


def worker_command(site: Path) -> list[str]:
    return [sys.executable, "-c", WORK.format(site=repr(str(site)))]


class Starter:
    """`with Starter() as s`: the process from which workers are forked, in a group of its own that ends with the
    block."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with theirs:  # modules may be compiled once for all starts
            self.process = subprocess.Popen(
                [sys.executable, "-c", FORK, str(theirs.fileno()), WORK],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True, env=kept,
            )  # fmt: skip

    def fork(self, site: Path, files: list[int]) -> int:
        socket.send_fds(self.socket, [str(site).encode()], files)
        return int(self._answer())

    def _answer(self) -> bytes:
        answer = self.socket.recv(64)
        if not answer:
            raise UserError("torch cannot be imported in a process of its own; see what 'eblvm doctor' says")
        return answer

    def __enter__(self) -> "Starter":
        """Wait until torch is imported."""
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused: object) -> None:
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and whatever it has started
        self.process.wait()


class Version:
    """`with Version(...) as v`: a worker of one version, forked by a starter or started by a command."""

    def __init__(
        self, name: str, site: Path, root: Path, starter: Starter | None, command: list[str] | None = None
    ) -> None:
        self.name, self.site = name, site
        self.extras: tuple[str, ...] = ()
        self.process: subprocess.Popen[bytes] | None = None
        self.log = root / f"worker-{next(NUMBER)}.log"
        (theirs_in, mine_out), (mine_in, theirs_out) = os.pipe(), os.pipe()
        try:
            with self.log.open("w") as log:
                if starter is not None:
                    self.pid = starter.fork(site, [theirs_in, theirs_out, log.fileno()])
                else:
                    self.process = subprocess.Popen(
                        command or worker_command(site), stdin=theirs_in, stdout=theirs_out, stderr=log, cwd=site,
                        env=os.environ | {"PYTHONHASHSEED": "0"}, start_new_session=True,
                    )  # fmt: skip
                    self.pid = self.process.pid
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self.requests, self.answers = os.fdopen(mine_out, "w"), os.fdopen(mine_in)

    def ask(self, **request: Any) -> dict[str, Any]:
        with contextlib.suppress(BrokenPipeError):
            self.requests.write(json.dumps(request) + "\n")
            self.requests.flush()
        line = self.answers.readline()
        if not line:
            raise UserError(f"{self.name} cannot be measured: {last_lines(self.log.read_text())}")
        return json.loads(line)

    def pin(self, number: int) -> None:
        """Stay on one core from now on: other work on that core slows both versions alike."""
        if hasattr(os, "sched_setaffinity"):
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(self.pid, {cores[number % len(cores)]})

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
        """A worker ends when its requests end; after an error nobody waits for its step."""
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()
        if kind is None:
            self.answers.read()  # to its end, which is the worker's
        elif self.process is not None:
            self.process.kill()
        self.answers.close()
        if self.process is not None:
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
