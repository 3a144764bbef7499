"""The registry of suites: all are listed, each reads its own options, and the help waits for nothing."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.bench import suites
from eblvm.bench.suites import GROUPS, SUITES, Suite
from eblvm.bench.tools import record, records
from eblvm.engine.errors import UserError
from eblvm.engine.options import flag

FOLDER = Path(suites.__file__).parent
QUICK = """
import sys, time
from eblvm.engine.cli import main
try:
    main({argv})
except SystemExit:
    pass
assert "torch.nn" not in sys.modules, "torch was imported"
assert time.process_time() < 0.3, time.process_time()
"""


def test_every_file_is_a_suite() -> None:
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*.py")} - {"--init--", "ratios"}
    assert set(SUITES) == files
    assert {suite.group for suite in SUITES.values()} == set(GROUPS)


def test_the_help_lists_every_suite(run: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    run("bench", "--help")
    text = capsys.readouterr().out
    for name, suite in SUITES.items():
        assert re.search(rf"^  {name}\*? +{re.escape(suite.help)}$", text, re.MULTILINE)


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_shows_the_options_it_reads_and_no_others(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with pytest.raises(SystemExit):
        run("bench", name, "--help")
    shown = set(re.findall(r"^  (?:-h, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
    own = {flag(leaf.name) for leaf in SUITES[name].leaves()}
    assert shown - {"--help", "--json", "--contestants"} == own
    assert ("--contestants" in shown) == SUITES[name].contested


@pytest.mark.parametrize("words", ["", "all ", "deep ", "compare "])
def test_help_does_not_import_torch(words: str) -> None:
    code = QUICK.format(argv=f"bench {words}--help".split())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_suite_is_given_its_options(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = []

    def measured(self: Suite) -> records.Record:
        asked.append(self)
        return record.make("s/1", "fid", "eblvm bench fid", "cpu", {"rows": []})

    monkeypatch.setattr(type(SUITES["fid"]), "run", measured)
    monkeypatch.setattr(type(SUITES["fid"]), "format_table", lambda self, result: "a table")
    run("bench", "fid", "--data", "c.npz", "--sizes", "10,20", "--json", str(tmp_path / "fid.json"))
    assert (asked[0].data, asked[0].sizes) == ("c.npz", (10, 20))
    assert capsys.readouterr().out.startswith("a table\nwrote ")
    assert records.read(tmp_path / "fid.json", "s/1")["name"] == "fid"


def test_all_runs_every_standard_suite_with_the_options_it_reads(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def measure(suite: Suite, json: Path | None) -> None:
        asked[suite.kind] = suite

    monkeypatch.setattr("eblvm.bench.subcommands.suite.measure", measure)
    run("bench", "all", "--rounds", "3", "--data", "faces")
    assert set(asked) == {"grbm", "toy", "deep", "vages", "bidvl", "data", "growth", "kernels"}
    assert {suite.rounds for suite in asked.values()} == {3}
    assert asked["data"].data == "faces"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("fid",), "give --data FILE.npz"),
        (("subnormals",), "give --run-folder RUN"),
        (("results", "--name", "mnist"), "give --name and --runs"),
        (("posterior-features",), "give --runs"),
        (("studies", "--study", "theory"), "give --data FILE"),
        (("studies", "--study", "thery"), "did you mean 'theory'"),
        (("newton-cost", "--rounds", "many"), "got --rounds many, expected an integer"),
        (("growht",), "did you mean 'growth'"),
    ],
)
def test_mistakes_are_one_clear_sentence(run: Callable[..., None], words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        run("bench", *words)
