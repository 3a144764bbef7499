"""`eblvm bench compare BASE`: this working tree against another commit, on this machine, by turns.

Both are installed from their own sources into a throw-away folder and run in a process each. Saved bytes, peak bytes,
FLOPs and operator calls may grow by 2 %; time fails if even head's fastest reading is 25 % above base's slowest.
"""

import contextlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from tqdm import tqdm

from eblvm.bench.tools import gates, worker
from eblvm.bench.tools.gates import Change
from eblvm.bench.tools.timing import median
from eblvm.engine import tables
from eblvm.engine.errors import UserError

TIME_ALLOWED = 0.25
MIB = 2**20
HEADER = (
    "case", "base_ms", "head_ms", "base/head", "base saved_mib", "head saved_mib", "base peak_mib", "head peak_mib",
    "base ops", "head ops",
)  # fmt: skip

# An editable install puts a finder before sys.path; without it the worker's own folder is found first.
BOOT = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
sys.path.insert(0, sys.argv[1])
from eblvm.bench.tools.worker import main
main()
"""


class Measured(NamedTuple):
    """One case of one version: its deterministic figures and its readings in ms."""

    figures: dict[str, Any]
    ms: list[float]


class Version:
    """A worker process of one version."""

    def __init__(self, name: str, site: Path, log: IO[str]):
        self.name, self.site, self.log = name, site, log
        self.process = subprocess.Popen(
            [sys.executable, "-c", BOOT, str(site)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=site,
        )  # fmt: skip

    def ask(self, **request: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"{self.name} cannot be measured: {last_lines(Path(self.log.name).read_text())}")
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
        return answer["cases"]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def run(base: str, suite: str, rounds: int, here: Path, progress: bool = True) -> tuple[str, list[str]]:
    """(the table, sentences about every gate that head fails), head being the working tree around `here`."""
    repository = Path(git(here, "not in a git repository", "rev-parse", "--show-toplevel"))
    commit = git(repository, f"unknown commit {base!r}", "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="eblvm-compare-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        tree = stack.enter_context(worktree(repository, commit, root / "tree"))
        sites = {f"base {base}": build(tree, root, f"base {base}"), "head": build(repository, root, "head")}
        versions = []
        for name, site in sites.items():
            log = stack.enter_context(open(root / f"{site.name}.log", "w"))
            versions.append(Version(name, site, log))
            stack.callback(versions[-1].close)
        measured = measure(versions[0], versions[1], suite, rounds, progress)
    return format_table(measured), failures(measured)


def git(folder: Path, problem: str, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True)
    if done.returncode:
        detail = last_lines(done.stderr) if done.stderr.strip() else "git knows no such name"
        raise UserError(f"{problem} ({detail}); give 'compare' a branch, tag or commit of the repository you are in")
    return done.stdout.strip()


@contextlib.contextmanager
def worktree(repository: Path, commit: str, path: Path) -> Iterator[Path]:
    git(repository, "cannot check out the base", "worktree", "add", "--detach", str(path), commit)
    try:
        yield path
    finally:
        git(repository, "cannot remove the worktree", "worktree", "remove", "--force", str(path))


def build(tree: Path, root: Path, name: str) -> Path:
    """Install `tree` into a folder of its own under `root`, beside the running environment's dependencies."""
    site = root / name.split()[0]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    if importlib.util.find_spec("scikit_build_core") and (shutil.which("cmake") or importlib.util.find_spec("cmake")):
        command.append("--no-build-isolation")  # an isolated build would first install a torch of its own
    command += [
        "--disable-pip-version-check",
        "--target",
        str(site),
        f"--config-settings=build-dir={root}/build-{site.name}",
    ]
    done = subprocess.run([*command, str(tree)], capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{name} does not build: {last_lines(done.stderr)}; choose a commit that installs with pip")
    if not (site / "eblvm" / "bench" / "tools" / "worker.py").exists():
        raise UserError(
            f"{name} is older than 'eblvm bench compare': it has no eblvm.bench.tools.worker; choose a newer commit"
        )
    return site


def last_lines(output: str, count: int = 3) -> str:
    lines = [
        line.strip() for line in output.splitlines() if line.strip() and "note:" not in line and "hint:" not in line
    ]
    return " / ".join(lines[-count:]) or "no message"


def measure(
    base: Version, head: Version, suite: str, rounds: int, progress: bool
) -> dict[str, tuple[Measured, Measured]]:
    """{case: (base, head)} of the cases that both versions have."""
    of_base = base.open(suite)
    of_head = head.open(suite)
    if dropped := [name for name in of_base if name not in of_head]:
        raise UserError(
            f"head has no case {dropped[0]!r} of suite {suite!r}, which {base.name} has; keep it, or rename both"
        )
    both = [name for name in of_head if name in of_base]
    if not both:
        raise UserError(f"{base.name} and head have no case of suite {suite!r} in common; choose another --suite")
    pair = (base, head)
    measured = {
        name: (Measured(base.ask(do="footprint", case=name), []), Measured(head.ask(do="footprint", case=name), []))
        for name in both
    }
    for r in tqdm(range(rounds), desc="compare", disable=None if progress else True, file=sys.stderr, leave=False):
        for name in both:
            for side in (0, 1) if r % 2 == 0 else (1, 0):
                measured[name][side].ms.append(pair[side].ask(do="time", case=name)["ms"])
    return measured


def failures(measured: dict[str, tuple[Measured, Measured]]) -> list[str]:
    found = []
    for name, (base, head) in measured.items():
        found += [str(change) for change in gates.grown(name, head.figures, base.figures)]
        if min(head.ms) > (1 + TIME_ALLOWED) * max(base.ms):
            change = Change(
                name, "us a step, fastest of head against slowest of base", 1e3 * max(base.ms), 1e3 * min(head.ms)
            )
            found.append(str(change))
    return found


def format_table(measured: dict[str, tuple[Measured, Measured]]) -> str:
    def mib(figures: dict[str, Any], name: str) -> float | None:
        return None if figures[name] is None else figures[name] / MIB

    rows = []
    for name, (base, head) in measured.items():
        base_ms, head_ms = median(base.ms), median(head.ms)
        memory = [mib(side.figures, figure) for figure in ("saved_bytes", "peak_bytes") for side in (base, head)]
        rows.append([name, base_ms, head_ms, base_ms / head_ms, *memory, base.figures["ops"], head.figures["ops"]])
    return tables.text(HEADER, rows)
