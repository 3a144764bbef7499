"""`eblvm bench SUITE --contestants`: the frame, what is refused, and every installed contestant's check."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from eblvm.bench.contest import bidvl, contest, pictures, sampling
from eblvm.bench.contest import tasks as contest_tasks
from eblvm.bench.contestants import by_naive, roster
from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.pages import pages
from eblvm.bench.suites import SUITES
from eblvm.bench.tools import records
from eblvm.bench.tools.agreement import AgreementError
from eblvm.engine.errors import UserError
from eblvm.engine.optim.base import Weights

CHECKED = ("grbm", "toy", "deep", "vages")
QUICK = ("naive", "scikit-learn")  # always installed and not compiled


@pytest.fixture(autouse=True)
def no_group_is_left() -> Iterator[None]:
    yield
    if torch.distributed.is_initialized():  # DDP's contestant has made one
        torch.distributed.destroy_process_group()


def small(suite: str) -> list[contest_tasks.Training]:
    """The suite's tasks at the size of their checks."""
    training = [task for task in contest_tasks.tasks(suite) if isinstance(task, contest_tasks.Training)]
    return [contest_tasks.Training(task.small, task.small, task.step, True) for task in training]


def test_the_command_writes_a_record(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contest, "tasks", lambda suite, *rest: small(suite)[:1])
    monkeypatch.setattr(contest, "of_suite", lambda suite: [c for c in roster.of_suite(suite) if c.name in QUICK])
    run("bench", "grbm", "--contestants", "--rounds", "3", "--json", str(tmp_path))
    (path,) = tmp_path.iterdir()
    result = records.read(path, contest.SCHEMA)
    assert path.name == "contest-grbm.jsonl"
    assert [row["contestant"] for row in result["rows"]] == ["engine", "naive"]
    engine, naive = result["rows"]
    assert engine["ratio"] == 1
    assert naive["difference"] <= roster.TOLERANCE
    assert min(naive["ms"], naive["ratio"], naive["peak_mib"]) > 0
    assert naive["case"] in capsys.readouterr().out
    text = pages.render("contest", tmp_path)
    assert f"### {naive['case']}\n" in text
    assert f"| {naive['difference']:.0e} |" in text


def test_one_that_is_not_installed_is_a_sentence() -> None:
    absent = Contestant("nobody", by_naive.grbm, "no_such_module", 1e-8, "", "")
    assert absent.absence() == "no_such_module is not installed: pip install 'eblvm[contestants]'"
    assert Contestant("torch", by_naive.grbm, "torch", 1e-8, "", "").absence() is None


def test_absent_ones_are_listed_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Contestant("nobody", by_naive.grbm, "no_such_module", 1e-8, "", "")
    monkeypatch.setattr(contest, "of_suite", lambda suite: [absent])
    result = contest.run("grbm", 1, progress=False, chosen=small("grbm")[:1])
    assert [row["contestant"] for row in result["rows"]] == ["engine"]
    assert result["absent"] == {"nobody": "no_such_module is not installed: pip install 'eblvm[contestants]'"}
    assert contest.format_table(result).endswith("pip install 'eblvm[contestants]'")


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
    others = [sampling.Langevin(10, 5, 4, 3)] if suite == "grbm" else []
    pairs = [(task, c) for task in (*small(suite), *others) for c in entered if task.suits(c)]
    assert pairs
    for task, one in pairs:
        contest.checked(task, one)


@pytest.mark.parametrize("library", ["torchopt", "betty"])
def test_neumanns_series_is_the_unroll_at_a_minimum(library: str) -> None:
    """If q is the exact posterior, N terms at the unroll's rate are the gradient through N steps."""
    (one,) = [c for c in roster.of_suite("grbm") if c.name == f"{library}-neumann"]
    if (absence := one.absence()) is not None:
        pytest.skip(absence)
    (case,) = [task.case for task in small("grbm") if "unroll=sgd" in task.name]
    engine = CaseStep(case)
    theta, (params, old, _) = engine.state.theta.params, engine.state.phi
    weight, bias = params
    phi = {weight: theta["W"].T.clone(), bias: theta["c"].clone()}
    still = old._replace(v={name: torch.ones_like(p) for name, p in phi.items()})
    engine.state = engine.state._replace(phi=Weights(phi, still))
    noise = engine.noise()
    gradient = one.enter(case).gradient(engine.state, engine.v, noise)
    assert contest_tasks.relative(gradient, engine.gradient(noise)) <= roster.TOLERANCE


@pytest.mark.parametrize("name", ["naive", "torch-fidelity"])
def test_other_tasks_have_the_engines_result(name: str) -> None:
    """BiDVL after three steps, FID of the same features."""
    suite, task = ("bidvl", bidvl.tasks()[0]) if name == "naive" else ("data", pictures.Fid(64))
    (one,) = [c for c in roster.of_suite(suite) if c.name == name]
    if (absence := one.absence()) is not None:
        pytest.skip(absence)
    try:
        assert contest.checked(task, one) <= roster.TOLERANCE
    except (RuntimeError, ImportError) as error:
        pytest.skip(f"{name} cannot be imported here: {error}")


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # webdataset's
def test_pictures_are_the_same(tmp_path: Path) -> None:
    """Of every way to read them: bytes of ten pictures. webdataset leaves its files open."""
    for i in range(10):
        pixels = np.random.default_rng(i).integers(0, 255, (90, 80, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{i}.jpg")
    album = pictures.Album(tmp_path, tmp_path)
    checked = 0
    for task in (pictures.Reading(album, "store"), pictures.Reading(album, "dali")):
        for one in roster.of_suite("data"):
            if one.absence() is None and task.suits(one):
                assert contest.checked(task, one) == 0
                checked += 1
    assert checked


def test_every_suite_has_tasks_and_contestants() -> None:
    for suite in [name for name, one in SUITES.items() if one.contested]:
        assert roster.of_suite(suite), suite
        assert suite == "data" or contest_tasks.tasks(suite), suite


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bench", "grbm", "--contestants", "--compile"), "unknown option '--compile'"),
        (("bench", "gates", "--contestants"), "unknown option '--contestants'"),
        (("bench", "all", "--json", "x.json"), "give a folder"),
        (("bench", "toy", "--data", "x"), "unknown option '--data'"),
    ],
)
def test_bad_input_is_one_clear_sentence(run: Callable[..., None], words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        run(*words)
