"""`eblvm bench SUITE --contestants`: the frame, what is refused, and every installed contestant's check."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eblvm.bench.contestants import by_naive, roster
from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.pages import contest as page
from eblvm.bench.suites import contest, contest_tasks
from eblvm.bench.tools import record
from eblvm.bench.tools.agreement import AgreementError
from eblvm.engine.errors import UserError

CHECKED = ("grbm", "toy")
QUICK = ("naive", "scikit-learn")  # always installed and not compiled


def small(suite: str) -> list[contest_tasks.Training]:
    """The suite's tasks at the size of their checks."""
    return [contest_tasks.Training(task.small, task.small, task.step, True) for task in contest_tasks.tasks(suite)]


def test_the_command_writes_a_record(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "tasks", lambda suite, data: small(suite)[:1])
    monkeypatch.setattr(contest, "of_suite", lambda suite: [c for c in roster.of_suite(suite) if c.name in QUICK])
    run("bench", "grbm", "--contestants", "--rounds", "3", "--json", str(tmp_path))
    (path,) = tmp_path.iterdir()
    found = record.read(path, contest.SCHEMA)
    assert path.name.startswith("contest-grbm-")
    assert [row["contestant"] for row in found["rows"]] == ["engine", "naive"]
    engine, naive = found["rows"]
    assert engine["ratio"] == 1
    assert naive["difference"] <= roster.TOLERANCE
    assert min(naive["ms"], naive["ratio"], naive["peak_mib"]) > 0
    assert naive["case"] in capsys.readouterr().out
    text = page.render(tmp_path)
    assert f"### {naive['case']}\n" in text
    assert f"| {naive['difference']:.0e} |" in text


def test_one_that_is_not_installed_is_a_sentence() -> None:
    absent = Contestant("nobody", by_naive.grbm, "no_such_module", 1e-8, "", "")
    assert absent.absence() == "no_such_module is not installed: pip install 'eblvm[contestants]'"
    assert Contestant("torch", by_naive.grbm, "torch", 1e-8, "", "").absence() is None


def test_absent_ones_are_listed_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Contestant("nobody", by_naive.grbm, "no_such_module", 1e-8, "", "")
    monkeypatch.setattr(contest, "of_suite", lambda suite: [absent])
    found = contest.run("grbm", 1, progress=False, found=small("grbm")[:1])
    assert [row["contestant"] for row in found["rows"]] == ["engine"]
    assert found["absent"] == {"nobody": "no_such_module is not installed: pip install 'eblvm[contestants]'"}
    assert contest.format_table(found).endswith("pip install 'eblvm[contestants]'")


def of_another_seed(case: Any) -> Any:
    """A contestant with a wrong gradient: it ignores the engine's parameters."""
    entrant = by_naive.PlainGrbm(case)
    gradient = entrant.gradient
    entrant.gradient = lambda state, v, noise: gradient(state, v + 0.1, noise)
    return entrant


def test_a_wrong_gradient_is_refused_unless_it_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    task = small("grbm")[0]
    wrong = Contestant("wrong", of_another_seed, "torch", 1e-8, "", "")
    with pytest.raises(AgreementError, match=r"wrong differs from the engine by .*no speed is reported"):
        contest.contest(task, [wrong], 1)
    explained = Contestant("wrong", of_another_seed, "torch", 1e-8, "", "Its batch is shifted.")
    _, row = contest.contest(task, [explained], 1)
    assert row["note"] == "Its batch is shifted."
    assert row["difference"] > 1e-8


def test_what_another_library_raises_is_its_row() -> None:
    def broken(case: Any) -> Any:
        raise RuntimeError("no such operator\nand more")

    engine, row = contest.contest(small("grbm")[0], [Contestant("broken", broken, "torch", 1e-8, "", "")], 1)
    assert row["note"] == "cannot run: RuntimeError: no such operator"
    assert row["ms"] is None
    assert engine["ms"] > 0


ENTERED = [(suite, name) for suite in CHECKED for name in dict.fromkeys(c.name for c in roster.of_suite(suite))]


@pytest.mark.parametrize(("suite", "name"), ENTERED)
def test_every_contestant_has_the_engines_gradient(suite: str, name: str) -> None:
    if name == "torch.compile":
        pytest.skip("compiles for half a minute a case: `eblvm bench grbm --contestants` checks it")
    entered = [c for c in roster.of_suite(suite) if c.name == name]
    if (absence := entered[0].absence()) is not None:
        pytest.skip(absence)
    pairs = [(task, c) for task in small(suite) for c in entered if task.suits(c)]
    assert pairs
    for task, one in pairs:
        contest.checked(task, one)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bench", "grbm", "--contestants", "--compile"), "remove --compile and --device"),
        (("bench", "gates", "--contestants"), "--contestants measures a suite, or 'all'"),
        (("bench", "all", "--json", "x.json"), "give a folder"),
        (("bench", "toy", "--data", "x"), "suite 'toy' needs no data"),
    ],
)
def test_bad_input_is_one_clear_sentence(run: Callable[..., None], words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        run(*words)


def test_page_is_made_from_the_records() -> None:
    """Fails when page and records differ: `python -m eblvm.bench.pages.contest` makes the page again."""
    assert page.DOCUMENT.read_text() == page.render(record.RECORDS)
