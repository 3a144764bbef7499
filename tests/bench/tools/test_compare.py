"""`eblvm bench compare`: proven on copies of this tree into which a regression is put."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.bench.tools import building, compare, records
from eblvm.bench.tools.compare import Measured
from eblvm.bench.tools.intervals import median_ratio
from eblvm.bench.tools.version import Version
from eblvm.engine.errors import UserError

SLOW = """
import time

_of = Step.of


def _slow(self, *arguments):
    step = _of(self, *arguments)

    def slow(*given):
        end = time.process_time() + 0.15
        while time.process_time() < end:
            pass
        return step(*given)

    return slow

    def slow(*given):
        end = time.process_time() + 0.15
        while time.process_time() < end:
            pass
        return step(*given)

Step.of = _slow
"""
SAVING = """
_of = Step.of


def _saving(self, *arguments):
    step = _of(self, *arguments)

    def saving(*given):
        with torch.enable_grad():
            held = torch.zeros(10_000, requires_grad=True).exp()
        result = step(*given)
        del held
        return result

    return saving

    def saving(*given):
        with torch.enable_grad():
            held = torch.zeros(10_000, requires_grad=True).exp()
        result = step(*given)
        del held
        return result

Step.of = _saving
"""
STEP = Path("engine", "training", "step.py")


def git(repository: Path, *words: str) -> None:
    identity = (
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "core.hooksPath=/dev/null",
    )
    subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this tree. Without a compiler it builds in seconds, with the reference kernels."""
    copy = tmp_path_factory.mktemp("repository")
    for folder in ("engine", "kernels", "bench"):
        shutil.copytree(records.SOURCE / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for path in records.SOURCE.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    # Two cases are enough, and quick: the toy's, on small batches.
    registry = copy / "bench" / "tools" / "registry.py"
    registry.write_text(
        registry.read_text() + "\n\ndef gates() -> list[Case]:\n"
        "    config = recipe('checkerboard').replaced(batch=10, N=1, K=1, fused=False)\n"
        "    return [Case(config, (2,)), Case(config.replaced(method='dsm'), (2,))]\n"
    )
    git(copy, "init", "-q")
    git(copy, "add", "-A")
    git(copy, "commit", "-q", "-m", "base")
    return copy


@pytest.fixture
def repository(committed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    git(committed, "reset", "-q", "--hard")
    monkeypatch.chdir(committed)
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    monkeypatch.setenv("EBLVM_CACHE", str(committed.parent / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch(committed)))
    return committed


def scratch(repository: Path) -> Path:
    """The folder in which comparisons of this repository work."""
    folder = repository.parent / "scratch"
    folder.mkdir(exist_ok=True)
    return folder


def left(repository: Path) -> list[Path]:
    return list(scratch(repository).glob(f"{building.PREFIX}*"))


def nothing_left(repository: Path) -> bool:
    """No worktree, no changed file, no folder."""
    told = [
        subprocess.run(["git", *words], cwd=repository, check=True, capture_output=True, text=True).stdout
        for words in (["worktree", "list"], ["status", "--porcelain", "--", ":!engine"])
    ]
    return len(told[0].splitlines()) == 1 and told[1] == "" and not left(repository)


@pytest.mark.slow
def test_an_identical_copy_passes(
    run: Callable[..., None], repository: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run("bench", "compare", "HEAD", "--rounds", "4", "--json", str(tmp_path / "compared.json"))
    out, err = capsys.readouterr()
    assert "method=dsm" in out
    assert "gates passed" in out
    assert err.startswith("comparing the working tree with HEAD\n")
    assert "launch 2 of 2" in err
    rows = records.read(tmp_path / "compared.json", compare.SCHEMA)["rows"]
    assert [row["rounds"] for row in rows] == [[2, 2]] * 2
    assert all(low <= ratio <= high for ratio, low, high in (row["head_to_base"] for row in rows))
    assert nothing_left(repository)
    assert "head: the build of the same sources is reused" in err


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_a_killed_comparison_leaves_nothing(run: Callable[..., None], repository: Path, ending: int) -> None:
    """Its processes end. After SIGKILL its folder goes when the next comparison starts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "eblvm", "bench", "compare", "HEAD", "--minutes", "5"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=os.environ | {"TMPDIR": tempfile.tempdir},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "figures of" in line:
            break
    workers = workers_of(scratch(repository))
    assert len(workers) == 2
    process.send_signal(ending)
    process.communicate(timeout=60)
    assert process.returncode in (143, -signal.SIGKILL)
    end = time.monotonic() + 60
    while workers_of(scratch(repository)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not workers_of(scratch(repository))
    if ending == signal.SIGKILL:
        with building.scratch() as folder:
            assert left(repository) == [folder]
    assert nothing_left(repository)


def workers_of(folder: Path) -> list[str]:
    """The processes that work in a folder."""
    workers = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink().is_relative_to(folder):
                workers.append(process.name)
    return workers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("injected", "figure"),
    [(SLOW, "time of head/base"), pytest.param(SAVING, "saved_bytes", marks=pytest.mark.long)],
    ids=["slow", "saving"],
)
def test_a_regression_exits_1(
    run: Callable[..., None], repository: Path, injected: str, figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (repository / STEP).open("a") as file:
        file.write(injected)
    with pytest.raises(SystemExit) as stop:
        run("bench", "compare", "HEAD", "--rounds", "2", "--only", "method=dsm")
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert "method=dsm" in out  # the table comes first
    failed = [line for line in err.splitlines() if line.startswith("gate failed: ")]
    assert any(figure in line for line in failed)
    if injected is SLOW:
        assert all(figure in line for line in failed)
    assert nothing_left(repository)


@pytest.mark.slow
def test_a_base_that_does_not_build_is_told(run: Callable[..., None], repository: Path) -> None:
    (repository / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nmessage(FATAL_ERROR broken)\n")
    git(repository, "commit", "-q", "-a", "-m", "broken")
    try:
        with pytest.raises(UserError, match=r"base HEAD does not build: .*; choose a commit that installs"):
            run("bench", "compare", "HEAD")
    finally:
        git(repository, "reset", "-q", "--hard", "HEAD~1")
    assert nothing_left(repository)


def test_an_unknown_base_is_told(run: Callable[..., None], repository: Path) -> None:
    with pytest.raises(UserError, match="unknown commit 'nowhere'"):
        run("bench", "compare", "nowhere")


def test_outside_a_repository_is_told(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="not in a git repository"):
        run("bench", "compare", "HEAD")


def test_time_fails_only_if_it_repeats() -> None:
    figures = {"saved_bytes": 1, "peak_bytes": 1, "flops": 1, "ops": 1}
    slow = Measured(figures, figures, ratios=[[1.05, 1.06], [1.04, 1.05]])
    assert slow.interval.suspicious
    assert compare.failures({"c": slow}) == []
    slow.confirmed = median_ratio([[1.0, 1.1], [0.99, 1.02]])
    assert compare.failures({"c": slow}) == []
    slow.confirmed = median_ratio([[1.03, 1.06], [1.04, 1.02]])
    (failure,) = compare.failures({"c": slow})
    assert "x1.050 [1.040, 1.060], with fresh processes x1.035" in failure


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not tie processes to cores")
def test_both_versions_share_a_core_that_changes_with_the_launch() -> None:
    cores = sorted(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    version = object.__new__(Version)
    version.pid = process.pid
    for number in range(len(cores) + 1):
        version.pin(number)
        assert os.sched_getaffinity(process.pid) == {cores[number % len(cores)]}
    process.communicate(b"\n")
