"""A version of the engine, installed from its sources into a folder of its own; builds are kept for the next time."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from eblvm.engine.data.pictures import cache
from eblvm.engine.durable import take_lock
from eblvm.engine.errors import UserError

Say = Callable[[str], None]
KEPT = 8  # builds, of commits and of native libraries each
PREFIX = "eblvm-compare-"
NO_COMPILER = "/nonexistent/c++"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder. If a run is killed outright, the next one removes its folder."""
    with contextlib.ExitStack() as stack:
        with take_lock(cache_folder("") / "lock", wait=True):  # so that no other run removes our folder as a leftover
            for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
                with contextlib.suppress(OSError, UserError), take_lock(left / "lock", wait=False):
                    shutil.rmtree(left, ignore_errors=True)
            made = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(made))
            stack.enter_context(take_lock(folder / "lock", wait=False))
        yield folder


def git(folder: Path, problem: str, *arguments: str) -> bytes:
    done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True)
    if done.returncode:
        said = done.stderr.decode(errors="replace")
        detail = last_lines(said) if said.strip() else "git knows no such name"
        raise UserError(f"{problem} ({detail}); give 'compare' a branch, tag or commit of the repository you are in")
    return done.stdout


def find(base: str, here: Path) -> tuple[Path, str]:
    """(the repository around `here`, the commit that `base` names)."""
    repository = git(here, "not in a git repository", "rev-parse", "--show-toplevel").decode().strip()
    named = ("rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    return Path(repository), git(Path(repository), f"unknown commit {base!r}", *named).decode().strip()


def checkout(repository: Path, commit: str, tree: Path) -> Path:
    """Extract a commit's files, from an archive and not a worktree: a killed run leaves nothing behind in the
    repository."""
    with tarfile.open(fileobj=io.BytesIO(git(repository, "cannot read the base", "archive", commit))) as archive:
        archive.extractall(tree, filter="data")
    return tree


def build(tree: Path, site: Path, root: Path, name: str, say: Say) -> Path:
    """Install `tree` into `site`, without the running environment's dependencies, or copy the installation that an
    earlier comparison made of the same sources."""
    kept = cache_folder("sites") / digest(sources(tree, "**/*"), *environment())
    if kept.is_dir():
        say(f"{name}: the build of the same sources is reused")
        os.utime(kept)
        shutil.copytree(kept, site)
        return site
    library = cache_folder("native") / digest(sources(tree, "**/*.cpp", "**/*.h"), *environment())
    compiled = library.is_dir()
    say(f"{name}: installing" + (", native library reused" if compiled else ", native library compiled (minutes)"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    if importlib.util.find_spec("scikit_build_core") and (shutil.which("cmake") or importlib.util.find_spec("cmake")):
        command.append("--no-build-isolation")  # an isolated build would first install a torch of its own
    command += ["--disable-pip-version-check", "--target", str(site)]
    command += [f"--config-settings=build-dir={root}/build-{site.name}", str(tree)]
    code, said = run_group(command, os.environ | ({"CXX": NO_COMPILER} if compiled else {}))
    if code:
        raise UserError(f"{name} does not build: {last_lines(said)}; choose a commit that installs with pip")
    if not (site / "eblvm" / "bench" / "tools" / "worker.py").exists():
        raise UserError(
            f"{name} is older than 'eblvm bench compare': it has no eblvm.bench.tools.worker; choose a newer commit"
        )
    kernels = site / "eblvm" / "kernels"
    if compiled:
        os.utime(library)
        shutil.copytree(library, kernels, dirs_exist_ok=True)
    elif made := [path for path in kernels.glob("_native*") if path.is_file()]:
        with tempfile.TemporaryDirectory(dir=root) as folder:
            for path in made:
                shutil.copy2(path, folder)
            keep(Path(folder), library)
    keep(site, kept)
    return site


def run_group(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """(exit code, its stderr). If we end, so do the compilers that it has started."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        said = process.communicate()[1]
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, said


def sources(tree: Path, *patterns: str) -> str:
    """A digest of the files that a build is made from: those of the packages, and the build's configuration."""
    files = [tree / "CMakeLists.txt"]
    how = tomllib.loads((tree / "pyproject.toml").read_text())
    for package in ("engine", "kernels", "bench"):
        for pattern in patterns:
            files += [path for path in sorted((tree / package).glob(pattern)) if path.suffix not in (".pyc", ".so")]
    facts = [
        f"{path.relative_to(tree)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files if path.is_file()
    ]
    return digest(json.dumps([how.get("build-system"), how.get("tool", {}).get("scikit-build")]), *facts)


def environment() -> tuple[str, ...]:
    """Facts besides the sources that a build depends on."""
    return sys.version, importlib.metadata.version("torch"), os.environ.get("CXX", ""), shutil.which("c++") or ""


def cache_folder(kind: str) -> Path:
    folder = cache.root(None) / "compare" / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def keep(built: Path, kept: Path) -> None:
    """Copy a finished build to its place in the cache, all at once or not at all; remove the oldest beyond KEPT."""
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time only
        making = Path(tempfile.mkdtemp(dir=kept.parent, prefix="making-"))
        shutil.copytree(built, making, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        making.rename(kept)
        for old in sorted(kept.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)


def digest(*facts: str) -> str:
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:20]


def last_lines(output: str, count: int = 3) -> str:
    lines = [
        line.strip() for line in output.splitlines() if line.strip() and "note:" not in line and "hint:" not in line
    ]
    return " / ".join(lines[-count:]) or "no message"
