"""Any command line and any configuration is accepted or refused in one line: no traceback, no crash, no nonsense."""

import contextlib
import io
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from eblvm.engine import recipes
from eblvm.engine.cli import COMMANDS, main
from eblvm.engine.cli.configuration import _every_option
from eblvm.engine.config import DATASETS, METHODS, MODELS, Config
from eblvm.engine.options import flag
from eblvm.engine.runs.folder import read_config

from .properties import TALLY, bounded, read_or_refused

OPTIONS = sorted(_every_option())
WORDS = st.sampled_from(
    (
        "0", "1", "2", "7", "-1", "0.5", "1e-3", "1e308", "-1e308", "1e-308", "nan", "inf", "-inf", "none", "None",
        "true", "", " ", ",", "1,2", "1,,2", "1e-3,1e-2", "9" * 30, "0x10", "٣", "½", "é", "\0", "\n", "a" * 300,
        "%s", "{}", "--", "-", "cpu", "cuda", "cuda:99", "meta", "mps", "auto", "../..", "/dev/null", "float64", "bf16",
    )
)  # fmt: skip
KINDS = st.sampled_from(
    sorted({*METHODS, *MODELS, *DATASETS, "kl", "fisher", "exact", "linear", "conv", "cosine", "step"})
)
VALUE = WORDS | KINDS | st.integers().map(str) | st.floats().map(str) | st.text(max_size=6)
FLAG = st.sampled_from(OPTIONS).map(flag) | st.sampled_from(("--small", "--config", "--help", "--out", "--dry-run"))
RECIPE = st.sampled_from([*recipes.RECIPES]) | WORDS
PAIR = st.tuples(FLAG, VALUE).map(list) | FLAG.map(lambda f: [f]) | st.tuples(FLAG, VALUE).map(lambda p: ["=".join(p)])
FIRST = sorted({*COMMANDS, "--version", "--help"} - {"demo", "doctor"})
OTHERS = ("eval", "sample", "report", "data", "plan")
OTHER_FLAGS = (
    "--fid --samples --reference --inception --shard --ood --draw --steps --kind --seed --step --again --ais --chains "
    "--temperatures --study --model --data --device --json --compare --plot --count --N --K --gpus --memory --help"
).split()


def said(arguments: list[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of a command; an exit by --help is 0."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as leaving:
            code = leaving.code or 0
    return code, out.getvalue(), err.getvalue()


def expect_an_answer(arguments: list[str]) -> int:
    TALLY["command lines"] += 1
    code, out, err = said(arguments)
    assert code in (0, 2), (arguments, err)
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if not line.startswith("warning: ")]
    if code == 2:
        assert len(lines) == 1, (arguments, err)
        assert lines[0].startswith("eblvm: "), arguments
        assert 20 < len(lines[0]) < 2000, arguments
    else:
        assert out
    return code


@bounded
@given(RECIPE, st.lists(PAIR, max_size=6))
def test_any_line_of_train(recipe: str, pairs: list[list[str]]) -> None:
    """Parsed and checked, not trained."""
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        arguments = ["train", recipe, *(word for pair in pairs for word in pair), "--dry-run"]
        if expect_an_answer(arguments) == 0:
            return
        assert not any(Path(folder).iterdir())  # a refused command leaves nothing behind


@bounded
@given(st.sampled_from(OTHERS), st.lists(st.sampled_from(OTHER_FLAGS) | VALUE, max_size=6))
def test_any_line_of_the_others(command: str, words: list[str]) -> None:
    """Run commands in folders without runs: only the arguments matter."""
    if command == "plan":
        words = ["no-such-recipe", *words]
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        expect_an_answer([command, *words])


@bounded
@given(st.lists(st.sampled_from(FIRST) | VALUE, max_size=1))
def test_any_command(words: list[str]) -> None:
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        expect_an_answer(words)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KINDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | KINDS, inner, max_size=3),
    max_leaves=6,
)
TREES = [
    recipes.recipe(name, method=method).to_json()
    for name, method in (("checkerboard", "bidsm"), ("digits", "vages-dsm"), ("mnist", "bimdsm"), ("cifar10", "bidvl"))
]


@st.composite
def damaged_tree(draw: st.DrawFn) -> object:
    """Draw a saved configuration with a few of its nodes replaced, dropped or added."""
    tree = json.loads(json.dumps(draw(st.sampled_from(TREES))))
    for _ in range(draw(st.integers(1, 3))):
        node = tree
        while True:
            name = draw(st.sampled_from(sorted(node)))
            if isinstance(node[name], dict) and node[name] and draw(st.booleans()):
                node = node[name]
                continue
            break
        how = draw(st.sampled_from(("replace", "drop", "add")))
        if how == "drop":
            del node[name]
        else:
            node[name if how == "replace" else draw(st.text(max_size=4))] = draw(JSON)
        if not node:
            break
    return tree


def finite(config: Config) -> None:
    """Check that an accepted configuration contains only numbers that a step can use."""
    config.check()
    for leaf in config.leaves():
        for value in leaf.value if isinstance(leaf.value, tuple) else [leaf.value]:
            assert not isinstance(value, float) or (math.isfinite(value) and abs(value) <= 1e30)


@bounded
@given(damaged_tree() | JSON)
def test_any_configuration(tree: object) -> None:
    def read() -> None:
        finite(Config.from_json(tree))

    read_or_refused(read, "configurations")


@bounded
@given(st.binary(max_size=60) | JSON.map(lambda tree: json.dumps(tree).encode()))
def test_any_config_file(content: bytes) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_bytes(content)
        read_or_refused(lambda: read_config(Path(folder)), "configurations")
        for suffix in ("json", "toml"):
            path = Path(folder) / f"mine.{suffix}"
            path.write_bytes(content)
            expect_an_answer(["train", "--config", str(path), "--dry-run"])
