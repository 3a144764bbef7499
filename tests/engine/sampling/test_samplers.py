"""Every sampler as a run meets it: its own by default, the options it reads, samples that do not depend on others."""

from pathlib import Path

import pytest
import torch

from eblvm.engine import sampling
from eblvm.engine.cli import main
from eblvm.engine.errors import UserError
from eblvm.engine.runs.saved import SavedRun

RUNS = {
    "gibbs": "checkerboard --batch 4",
    "generator": "digits --method bidvl --width 2 --posterior-width 2 --latent 3 --generator-width 2 --batch 4",
}
SUITS = {
    "gibbs": {"gibbs", "hmc", "mala"},
    "langevin": {"langevin", "hmc", "mala", "inpainting"},
    "generator": {"generator"},
}


@pytest.fixture(scope="module")
def runs(deep: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedRun]:
    folders = {"langevin": deep}
    for name, options in RUNS.items():
        folders[name] = tmp_path_factory.mktemp(name) / "run"
        assert main(["train", *options.split(), "--steps", "1", "--out", str(folders[name])]) == 0
    return {name: SavedRun.open(folder) for name, folder in folders.items()}


def test_a_run_has_a_sampler_of_its_own_and_refuses_what_does_not_suit_it(runs: dict[str, SavedRun]) -> None:
    for name, run in runs.items():
        assert sampling.sampler_of(run).kind == name
        for kind, sampler in sampling.KINDS.items():
            assert (not sampler.suits(run)) == (kind in SUITS[name]), (name, kind)
            if sampler.suits(run):
                with pytest.raises(UserError):
                    sampling.sampler_of(run, kind)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--leapfrog 3", "sampler 'gibbs' does not read --leapfrog; it is an option of 'hmc': remove --leapfrog"),
        ("--sampler mala --leapfrog 3", "sampler 'mala' does not read --leapfrog; it is an option of 'hmc'"),
        ("--start normal", "does not read --start; it is an option of 'hmc' or 'mala' or 'inpainting' or 'langevin'"),
        ("--known top", "does not read --known; it is an option of 'inpainting'"),
        ("--step-size 0.1", "does not read --step-size; it is an option of 'hmc' or 'mala'"),
        ("--sampler langevin", "annealed Langevin dynamics is for a deep energy, got model 'grbm'"),
        ("--kind joint", "got kind 'joint'; remove --kind"),
        ("--steps -1", "got steps=-1, expected 0"),
        ("--steps many", "got --steps many, expected an integer"),
    ],
)
def test_mistakes_on_a_grbm(
    words: str, message: str, runs: dict[str, SavedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", str(runs["gibbs"].folder), "--count", "2", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_generator_has_no_steps(runs: dict[str, SavedRun]) -> None:
    with pytest.raises(UserError, match="sampler 'generator' does not read --steps; it is an option of 'gibbs' or"):
        sampling.sampler_of(runs["generator"], steps=3)
    with pytest.raises(UserError, match="unknown option '--colour'; valid: --kind"):
        sampling.sampler_of(runs["generator"], colour=3)


@pytest.mark.parametrize(
    ("run", "sampler", "options"),
    [
        ("gibbs", "gibbs", {"steps": 3}),
        ("gibbs", "hmc", {"steps": 3, "leapfrog": 2}),
        ("langevin", "mala", {"steps": 3, "target": "joint"}),
        ("langevin", "hmc", {"steps": 3, "target": "posterior"}),
        ("langevin", "hmc", {"steps": 3, "target": "given-h"}),
        ("generator", "generator", {}),
        ("generator", "generator", {"target": "given-h"}),
    ],
)
def test_a_sample_does_not_depend_on_the_others(
    run: str, sampler: str, options: dict, runs: dict[str, SavedRun]
) -> None:
    chosen, of = sampling.sampler_of(runs[run], sampler, **options), runs[run]
    whole, end = chosen.sample(of, "last", 6, 5).values, chosen.sample(of, "last", 2, 5, first=4).values
    torch.testing.assert_close(end, whole[4:], rtol=1e-4, atol=1e-4)


def test_completions_do_not_depend_on_each_other(runs: dict[str, SavedRun]) -> None:
    run = runs["langevin"]
    inpainting = sampling.sampler_of(run, "inpainting", steps=3)
    whole, end = inpainting.sample(run, "last", 4, 5).values, inpainting.sample(run, "last", 1, 5, first=3).values
    torch.testing.assert_close(end, whole[6:], rtol=1e-4, atol=1e-4)


def test_kind_inpainting_is_that_sampler(runs: dict[str, SavedRun], tmp_path: Path) -> None:
    folder = runs["langevin"].folder
    drawn = []
    for words in ("--kind inpainting", "--sampler inpainting"):
        assert main(["sample", str(folder), "--count", "2", "--steps", "2", *words.split()]) == 0
        drawn.append(torch.load(folder / "samples-inpainting.pt", weights_only=True))
        (folder / "samples-inpainting.pt").unlink()
    assert torch.equal(*drawn)
