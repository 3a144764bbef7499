"""Exported models: loaded with no run and no data beside them, they compute what the run computes."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch

import eblvm
from eblvm.engine.cli import main
from eblvm.engine.runs.exported import FACTS, SAFE, STATE_DICT

SHORT = {"steps": 8, "log_every": 4, "checkpoint_every": 4, "validations": 2}


@pytest.fixture(scope="module")
def grbm(tmp_path_factory: pytest.TempPathFactory) -> eblvm.Run:
    out = tmp_path_factory.mktemp("share") / "board"
    return eblvm.train("checkerboard", method="bidsm", out=out, N=1, K=1, **SHORT)


@pytest.mark.parametrize("weights", ["--safetensors", "--state-dict"])
def test_an_export_computes_what_its_run_does(
    grbm: eblvm.Run, weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "board"
    assert main(["export", str(grbm.folder), weights, "--out", str(out)]) == 0
    assert "next: " in capsys.readouterr().out
    assert (out / (SAFE if weights == "--safetensors" else STATE_DICT)).is_file()
    assert "eblvm train checkerboard" in (out / "README.md").read_text()
    moved = shutil.copytree(out, tmp_path / "elsewhere")
    shared, v = eblvm.load(moved), torch.rand(5, 2)
    assert torch.equal(shared.free_energy(v), grbm.free_energy(v))
    assert torch.equal(shared.posterior(v).mean, grbm.posterior(v).mean)
    assert torch.equal(shared.sample(6, steps=20), grbm.sample(6, steps=20))
    assert shared.step == grbm.step
    again = tmp_path / "again"
    assert main(["train", "--init", str(moved), "--steps", "2", "--out", str(again)]) == 0


def test_images_need_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deep model and a generator: sampled from their exports to the bit, without the data."""
    digits = eblvm.train("digits", model="deep", method="bimdsm", out=tmp_path / "deep", width=4, **SHORT)
    generated = eblvm.train("digits", method="bidvl", out=tmp_path / "bidvl", width=4, generator_width=4, **SHORT)
    v, h = torch.rand(3, *digits.saved.shape), torch.zeros(3, 20)
    energies = digits.energy(v, h), generated.energy(v)
    drawn = digits.sample(2, steps=5, kind="joint"), generated.sample(4)
    folders = digits.export(tmp_path / "a"), generated.export(tmp_path / "b", state_dict=True)

    def gone(*_: object) -> None:
        raise AssertionError("the data set was read")

    monkeypatch.setattr(eblvm.Config, "load_data", gone)
    deep, generator = map(eblvm.load, folders)
    assert torch.equal(deep.energy(v, h), energies[0])
    assert torch.equal(generator.energy(v), energies[1])
    assert torch.equal(deep.sample(2, steps=5, kind="joint"), drawn[0])
    assert torch.equal(generator.sample(4), drawn[1])


def test_replicas_are_exported_in_order(tmp_path: Path) -> None:
    run = eblvm.train("checkerboard", method="dsm", out=tmp_path / "run", lr=(1e-3, 1e-2), replicas=2, **SHORT)
    shared = eblvm.load(run.export(tmp_path / "shared"))
    for mine, theirs in zip(shared.saved.thetas("last"), run.saved.thetas(run.model), strict=True):
        assert all(torch.equal(p, theirs[k]) for k, p in mine.items())
    names = json.loads((tmp_path / "shared" / FACTS).read_text())["replicas"]
    assert names == ["seed=0 lr=0.001", "seed=1 lr=0.001", "seed=0 lr=0.01", "seed=1 lr=0.01"]


def test_the_card_of_an_evaluated_run_has_its_name_and_its_figures(tmp_path: Path) -> None:
    run = eblvm.train("checkerboard", method="dsm", out=tmp_path / "run", **SHORT)
    assert main(["eval", str(run.folder)]) == 0
    figures = json.loads((run.folder / "eval.json").read_text())["mean"]
    card = (run.export(tmp_path / "shared") / "README.md").read_text()
    assert "\n# shared\n" in card
    assert 'eblvm.load("shared")' in card
    assert figures
    assert all(f"| {name} | " in card for name in figures)


def test_a_damaged_or_foreign_folder_is_one_sentence(grbm: eblvm.Run, tmp_path: Path) -> None:
    out = grbm.export(tmp_path / "x")
    content = bytearray((out / SAFE).read_bytes())
    content[-1] ^= 1
    (out / SAFE).write_bytes(content)
    with pytest.raises(eblvm.UserError, match="does not match"):
        eblvm.load(out)
    (out / SAFE).unlink()
    with pytest.raises(eblvm.UserError, match="has neither"):
        eblvm.load(out)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("chapter 1")
    with pytest.raises(eblvm.UserError, match="nothing was overwritten"):
        grbm.export(tmp_path / "mine")


def test_a_repository_on_hugging_face(grbm: eblvm.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its local copy is loaded like any folder; without the package, or offline, the error says what to do."""
    if importlib.util.find_spec("huggingface_hub") is None:
        with pytest.raises(eblvm.UserError, match=r"eblvm\[hub\]"):
            eblvm.load("hf://someone/board")
        return
    import huggingface_hub

    out = grbm.export(tmp_path / "board")
    asked = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda n, revision: asked.append((n, revision)) or out)
    assert torch.equal(eblvm.load("hf://someone/board@v1").theta["b"], grbm.theta["b"])
    assert asked == [("someone/board", "v1")]

    def offline(name: str, revision: str | None) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(eblvm.UserError, match=r"no network.*local folder"):
        eblvm.load("hf://someone/board")


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="onnx is not installed: eblvm[onnx]")
def test_the_energy_as_onnx(grbm: eblvm.Run, tmp_path: Path) -> None:
    """The graph's value by ONNX's own reference is the energy, for another batch size than it was traced with."""
    from onnx.reference import ReferenceEvaluator

    out = grbm.export(tmp_path / "board", onnx=True)
    v = torch.rand(5, 2)
    (found,) = ReferenceEvaluator(str(out / "energy.onnx")).run(None, {"v": v.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), grbm.free_energy(v), rtol=1e-5, atol=1e-5)
