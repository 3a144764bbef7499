"""`eblvm bench compare`: proven on copies of this tree into which a regression is put."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.bench.tools import compare, record
from eblvm.bench.tools.compare import Measured
from eblvm.engine.errors import UserError

SLOW = """
import time

_call = Update.__call__


def _slow(self, *arguments):
    end = time.process_time() + 0.15
    while time.process_time() < end:
        pass
    return _call(self, *arguments)


Update.__call__ = _slow
"""
SAVING = """
_call = Update.__call__


def _saving(self, *arguments):
    with torch.enable_grad():
        held = torch.zeros(10_000, requires_grad=True).exp()
    result = _call(self, *arguments)
    del held
    return result


Update.__call__ = _saving
"""
STEP = Path("engine", "methods", "update.py")


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
    """A repository that holds this tree. Without a compiler it builds in seconds, with the reference kernels."""
    copy = tmp_path_factory.mktemp("repository")
    for folder in ("engine", "kernels", "bench"):
        shutil.copytree(record.SOURCE / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for path in record.SOURCE.iterdir():
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
    return committed


def worktrees(repository: Path) -> int:
    listed = subprocess.run(["git", "worktree", "list"], cwd=repository, check=True, capture_output=True, text=True)
    return len(listed.stdout.splitlines())


@pytest.mark.slow
def test_an_identical_copy_passes(
    run: Callable[..., None], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("bench", "compare", "HEAD", "--rounds", "4")
    out = capsys.readouterr().out
    assert "method=dsm" in out
    assert "gates passed" in out
    assert worktrees(repository) == 1
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=repository, check=True, capture_output=True, text=True
    )
    assert status.stdout == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("injected", "figure"), [(SLOW, "fastest of head"), (SAVING, "saved_bytes")], ids=["slow", "saving"]
)
def test_a_regression_exits_1(
    run: Callable[..., None], repository: Path, injected: str, figure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (repository / STEP).open("a") as file:
        file.write(injected)
    with pytest.raises(SystemExit) as stop:
        run("bench", "compare", "HEAD", "--rounds", "4")
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert "method=dsm" in out  # the table comes first
    failed = [line for line in err.splitlines() if line.startswith("gate failed: ")]
    assert any(figure in line for line in failed)
    if injected is SLOW:
        assert all(figure in line for line in failed)
    assert worktrees(repository) == 1


@pytest.mark.slow
def test_a_base_that_does_not_build_is_told(run: Callable[..., None], repository: Path) -> None:
    (repository / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.20)\nmessage(FATAL_ERROR broken)\n")
    git(repository, "commit", "-q", "-a", "-m", "broken")
    try:
        with pytest.raises(UserError, match=r"base HEAD does not build: .*; choose a commit that installs"):
            run("bench", "compare", "HEAD")
    finally:
        git(repository, "reset", "-q", "--hard", "HEAD~1")
    assert worktrees(repository) == 1


def test_an_unknown_base_is_told(run: Callable[..., None], repository: Path) -> None:
    with pytest.raises(UserError, match="unknown commit 'nowhere'"):
        run("bench", "compare", "nowhere")


def test_outside_a_repository_is_told(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="not in a git repository"):
        run("bench", "compare", "HEAD")


def test_time_fails_by_extremes_only() -> None:
    figures = {"saved_bytes": 1, "peak_bytes": 1, "flops": 1, "ops": 1}
    base = Measured(figures, [1.0, 2.0])
    assert compare.failures({"c": (base, Measured(figures, [2.4, 9.0]))}) == []
    (failure,) = compare.failures({"c": (base, Measured(figures, [2.6, 9.0]))})
    assert "(+30.0 %)" in failure
