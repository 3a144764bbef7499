"""Every tutorial runs as it stands, from top to bottom in an empty folder, with fewer and smaller steps.

Fences of `sh` hold commands, one a line; those of `python` run in one namespace; `yaml` is for other programs. Both run
in this process, in the order of the page; a line of torchrun runs on two processes over gloo, as torchrun's would.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eblvm.engine.cli import main
from eblvm.engine.sampling import langevin
from tests.distributed.ranks import on_ranks

TUTORIALS = Path(__file__).parents[2] / "docs" / "tutorials"
MOST = {"steps": 20, "chains": 10, "temperatures": 10, "count": 4, "rounds": 1, "log-every": 10}
SMALLER = {  # of a recipe's models
    "freyface": ["--latent", "8", "--validations", "1"],
    "mnist": ["--batch", "8", "--width", "4", "--posterior-width", "4", "--validations", "1"],
}


def blocks(page: str) -> list[tuple[str, str]]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", (TUTORIALS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    return [(kind, text) for kind, text in found if kind not in ("math", "yaml")]


def shortened(words: list[str]) -> list[str]:
    """The command with no more than MOST of anything, and its recipe's small model."""
    short = list(words)
    for i, word in enumerate(words[1:], 1):
        limit = MOST.get(words[i - 1].removeprefix("--")) if words[i - 1].startswith("--") else None
        if limit is not None:
            short[i] = str(min(limit, int(word)))
    return [*short, *(SMALLER.get(words[1], []) if words[0] == "train" else [])]


def run(page: str) -> dict[str, object]:
    """The names that a page's Python leaves."""
    names: dict[str, object] = {}
    for kind, text in blocks(page):
        if kind == "python":
            text = re.sub(r"\bsteps=(\d+)", lambda m: f"steps={min(MOST['steps'], int(m[1]))}", text)
            exec(compile(text, f"{page}.md", "exec", dont_inherit=True), names)
            continue
        assert kind == "sh", f"a fence of {kind!r}: use sh, python or math"
        for line in filter(None, text.splitlines()):
            program, *words = shlex.split(line, comments=True)
            if program == "torchrun":
                assert words[:5] == ["--standalone", "--nproc-per-node", "2", "-m", "eblvm"], line
                command = [str(Path(word).absolute()) if word.startswith("runs/") else word for word in words[5:]]
                assert on_ranks(2, main, shortened(command)) == [0, 0]
            else:
                assert program == "eblvm", line
                assert main(shortened(words)) == 0, line
    return names


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_tutorial_is_run() -> None:
    pages = {page.stem for page in TUTORIALS.glob("*.md")} - {"index"}
    tested = {name.removeprefix("test_tutorial_").replace("_", "-") for name in globals() if "test_tutorial_" in name}
    assert pages == tested


def test_tutorial_checkerboard(empty_folder: Path) -> None:
    run("checkerboard")
    for name in ("compare.png", "boards.html", "runs/bidsm/density.png"):
        assert (empty_folder / name).is_file()


def test_tutorial_freyface(empty_folder: Path, request: pytest.FixtureRequest) -> None:
    """On the real faces if they are there."""
    try:
        shutil.copy(request.getfixturevalue("real_data") / "frey.npz", empty_folder)
    except pytest.skip.Exception:
        np.savez(empty_folder / "frey.npz", x=np.random.default_rng(0).integers(0, 256, (1965, 28, 20), np.uint8))
    run("freyface")
    assert (empty_folder / "runs/frey/samples.png").is_file()


def test_tutorial_own_model() -> None:
    names = run("own-model")
    assert {"test_loss", "test_divergence", "auroc_uniform"} <= set(names["figures"])
    assert names["samples"].shape == (200, 2)


def test_tutorial_mnist(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langevin, "FRAME_STEPS", 2)
    random = np.random.default_rng(0)
    sets = {f"x_{name}": random.integers(0, 256, (n, 28, 28), np.uint8) for name, n in (("train", 60), ("test", 40))}
    sets |= {f"y_{name}": np.arange(n, dtype=np.uint8) % 10 for name, n in (("train", 60), ("test", 40))}
    np.savez(empty_folder / "mnist.npz", **sets)
    names = run("mnist")
    assert names["h"].shape == (4, 50)
    assert (empty_folder / "runs/mnist/tsne.png").is_file()


def test_tutorial_several_gpus() -> None:
    assert run("several-gpus")["difference"] < 1e-5


def test_tutorial_bench(empty_folder: Path) -> None:
    run("bench")
    assert (empty_folder / "profile.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (empty_folder / "plan.svg").read_text()[:1000]


def test_tutorial_adding_a_method(empty_folder: Path) -> None:
    """In a process of its own: a method that was declared is one until the process ends."""
    program = "from tests.docs.test_tutorials import run; run('adding-a-method')"
    environment = os.environ | {"PYTHONPATH": str(TUTORIALS.parents[1])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (empty_folder / "runs/bihuber").is_dir()
