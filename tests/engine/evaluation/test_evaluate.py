"""`eblvm eval` from a trained run to eval.json: figures, provenance, continuing, shards, comparison, clear errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from eblvm.engine import sampling
from eblvm.engine.cli import main
from eblvm.engine.evaluation import classification, sample_sections
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.evaluation.reconstruction import rmse
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.base import Sampler

TINY = "--width 2 --depth 12 --batch 16 --posterior-width 2 --head-width 8 --latent 4 --validations 1 --ema 0.5".split()
QUICK = "--steps 4 --fid 150 --reference 200 --draw 30".split()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deep run on the 8x8 digits with three checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "deep"
    options = [*TINY, "--lr", "3e-2", "--steps", "30", "--checkpoint-every", "10", "--keep", "5"]
    assert main(["train", "digits", "--model", "deep", *options, "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch) -> Path:
    """A copy of it, and a quick picture in the place of t-SNE's."""
    monkeypatch.setattr(classification, "tsne", lambda v: v[:, :2].numpy())
    return shutil.copytree(trained, tmp_path / "deep")


class Pooled:
    """A stand-in for Inception: 2x2 means, as 16 features. It counts its images and can fail."""

    def __init__(self, limit: int = 10**9):
        self.seen, self.limit = 0, limit

    def __call__(self, images: Tensor) -> Tensor:
        if self.seen + len(images) > self.limit:
            raise KeyboardInterrupt
        self.seen += len(images)
        return torch.nn.functional.avg_pool2d(images[:, :1].float() / 255, 2).flatten(1)


def pooled(net: Pooled) -> Extractor:
    return Extractor("inception", "pooled", "0" * 64, 16, net)


@pytest.fixture
def inception(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("EBLVM_CACHE", str(tmp_path / "cache"))

    def install(limit: int = 10**9) -> Pooled:
        net = Pooled(limit)
        monkeypatch.setattr(sample_sections, "load_inception", lambda path, device: pooled(net))
        return net

    return install


def evaluation(folder: Path, *options: str) -> dict:
    assert main(["eval", str(folder), *options]) == 0
    return json.loads((folder / "eval.json").read_text())


def failure(capsys, *arguments: str) -> str:
    assert main(["eval", *arguments]) == 2
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return captured.err


def test_everything_of_a_deep_run(trained: Path, inception, tmp_path: Path, capsys) -> None:
    run = shutil.copytree(trained, tmp_path / "deep")
    inception()
    np.savez(tmp_path / "stripes.npz", x_test=np.tile(np.uint8([0, 255]), (50, 8, 4)))
    facts = evaluation(run, *QUICK, "--ood", str(tmp_path / "stripes.npz"), "--ood", f"lines={tmp_path}/stripes.npz")
    shown = capsys.readouterr().out
    assert {
        "test_loss", "test_divergence", "svm_posterior_accuracy", "svm_pixels_accuracy", "auroc_uniform",
        "knn_posterior_accuracy", "logistic_pixels_accuracy", "energy_train", "energy_test",
        "energy_own_h", "energy_other_h",
        "auroc_stripes", "auroc_stripes_log_error", "neighbour_distance_samples", "fid_150", "kid_150",
    } <= set(facts["mean"])  # fmt: skip
    assert facts["mean"]["auroc_lines"] == facts["mean"]["auroc_stripes"]
    assert facts["mean"]["svm_pixels_accuracy"] > 0.8
    assert "fid: samples 150, reference 200 training images" in shown
    assert "inception_score none, pooled has no logits: install torch-fidelity" in shown
    assert "density lower bound on log p~(v), importance-weighted over 100 samples of h" in shown
    for name in ("tsne", "ood-uniform", "ood-stripes", "samples", "neighbours", "energies", "energies-h"):
        assert (run / f"{name}.png").stat().st_size > 1000, name
    assert (facts["model"], facts["ema"], facts["seed"], facts["step"]) == ("best", False, 0, [30])
    assert len(facts["weights"]) == len(facts["data"]) == 64
    assert facts["samples"] == {"train": 1400, "valid": 200, "test": 197}
    assert facts["sections"]["fid"]["seconds"] <= facts["seconds"]


def test_weights_and_data_are_known_by_their_hashes(run: Path) -> None:
    best, ema = (evaluation(run, "--model", model) for model in ("best", "ema"))
    assert best["weights"] != ema["weights"]
    assert best["data"] == ema["data"]
    assert ema["ema"]


def test_the_inception_score_where_there_are_logits(run: Path, inception, monkeypatch) -> None:
    def features_and_logits(images: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(images[:, :1].float() / 255, 2).flatten(1)

    inception()
    with_logits = Extractor("inception", "both", "1" * 64, 10, features_and_logits, has_logits=True)
    monkeypatch.setattr(sample_sections, "load_inception", lambda path, device: with_logits)
    assert 1 <= evaluation(run, *QUICK)["mean"]["inception_score_150"] <= 6


def test_a_damaged_eval_json_is_made_again(run: Path) -> None:
    (run / "eval.json").write_text("{")
    assert "test_loss" in evaluation(run)["mean"]


def test_a_killed_evaluation_continues(run: Path, inception, monkeypatch) -> None:
    inception(limit=220)  # fails among the reference's images, all samples are drawn
    assert main(["eval", str(run), *QUICK]) == 130
    before = json.loads((run / "eval.json").read_text())
    assert "samples" in before["sections"]
    assert "fid" not in before["sections"]

    def never(*_: object) -> None:
        raise AssertionError("this section was done before the kill")

    monkeypatch.setattr(classification, "figures", never)
    monkeypatch.setattr(sample_sections, "neighbours", never)
    monkeypatch.setattr(Sampler, "sample", never)
    rest = inception()
    after = evaluation(run, *QUICK)
    assert rest.seen == 200  # 150 samples' features were kept
    for name, section in before["sections"].items():
        assert after["sections"][name] == section
    monkeypatch.undo()
    monkeypatch.setenv("EBLVM_CACHE", str(run / "elsewhere"))
    inception()
    shutil.rmtree(run / "drawn")
    assert evaluation(run, *QUICK, "--again")["mean"]["fid_150"] == after["mean"]["fid_150"]


def test_the_reference_is_cached_for_every_run_on_the_same_data(run: Path, inception, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    inception()
    evaluation(run, *QUICK)
    again = inception()
    evaluation(other, *QUICK)
    assert again.seen == 150


def test_shards_add_up_to_the_whole(run: Path, trained: Path, inception, tmp_path: Path, monkeypatch) -> None:
    inception()
    whole = evaluation(run, *QUICK)["mean"]
    monkeypatch.setenv("EBLVM_CACHE", str(tmp_path / "other"))
    sharded = shutil.copytree(trained, tmp_path / "sharded")
    for rank in ("1/2", "0/2"):
        assert main(["eval", str(sharded), *QUICK, "--shard", rank]) == 0
    nothing = inception(limit=0)
    found = evaluation(sharded, *QUICK)["mean"]
    assert nothing.seen == 0
    assert found["fid_150"] == whole["fid_150"]
    assert found["kid_150"] == whole["kid_150"]


def test_samples_from_a_folder(run: Path, inception, tmp_path: Path, capsys) -> None:
    """The first training images themselves: no distance to their neighbours, hardly any FID."""
    inception()
    data = SavedRun.open(run).dataset
    torch.save(data.train[:150], tmp_path / "remembered.pt")
    remembered = evaluation(run, *QUICK, "--samples", str(tmp_path / "remembered.pt"), "--draw", "150")["mean"]
    assert remembered["neighbour_distance_samples"] == 0
    assert remembered["neighbour_distance_test"] > 0.5
    drawn = evaluation(run, *QUICK)["mean"]
    assert remembered["fid_150"] < 0.1 * drawn["fid_150"]
    assert "has 150 images, got --fid 151" in failure(
        capsys, str(run), "--fid", "151", "--samples", str(tmp_path / "remembered.pt")
    )


def test_early_stopping(run: Path, inception, capsys) -> None:
    inception()
    options = "--study early-stopping --steps 10 --fid 20 --reference 50".split()
    assert main(["eval", str(run), *options]) == 0
    facts = json.loads((run / "early_stopping.json").read_text())
    assert facts["steps"] == [10, 20, 30]
    assert facts["best_step"] == facts["steps"][facts["fid"].index(min(facts["fid"]))]
    assert facts["model"] == "ema"
    assert len(set(facts["fid"])) == 3
    assert "FID of the ema model on 20 samples" in capsys.readouterr().out
    at_step = "--steps 10 --fid 20 --reference 50 --model ema --step 20".split()
    assert evaluation(run, *at_step)["mean"]["fid_20"] == facts["fid"][1]


def test_compare(run: Path, trained: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    other = shutil.copytree(trained, tmp_path / "other")
    assert f"{other} has no eval.json; run 'eblvm eval" in failure(capsys, "--compare", str(run), str(other)).replace(
        str(run), str(other)
    )
    evaluation(run)
    evaluation(other, "--model", "ema")
    capsys.readouterr()
    assert main(["eval", "--compare", str(run), str(other), "--json", "table.json"]) == 0
    shown = capsys.readouterr().out
    assert "| figure | deep | other |" in shown
    table = json.loads(Path("table.json").read_text())
    assert table["auroc_uniform"]["deep"][0] == json.loads((run / "eval.json").read_text())["mean"]["auroc_uniform"]
    assert Path("compare.png").stat().st_size > 1000
    assert "the same folder twice" in failure(capsys, "--compare", str(run), str(run))


def test_replicas_of_a_grbm(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "grbm"
    assert main(["train", "digits", "--method", "dsm", "--steps", "20", "--replicas", "2", "--out", str(out)]) == 0
    facts = evaluation(out, "--chains", "20", "--temperatures", "10", "--steps", "5")
    assert facts["likelihood"] == "AIS, 20 chains x 10 temperatures"
    assert facts["deviation"]["reconstruction_rmse"] > 0
    gap = facts["mean"]["log_z_reverse"] - facts["mean"]["log_z"]
    assert facts["mean"]["test_log_likelihood"] - facts["mean"]["test_log_likelihood_reverse"] == pytest.approx(gap)
    assert 0 < facts["mean"]["reconstruction_rmse"] < 2 * facts["mean"]["reconstruction_rmse_of_mean"]

    shutil.copytree(out, tmp_path / "other")
    capsys.readouterr()
    assert main(["eval", "--compare", "grbm", "other"]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "seed" in line]
    assert [row[:2] for row in rows] == [[f"| {run}", f"seed={seed}"] for run in ("grbm", "other") for seed in (0, 1)]


def test_rmse_by_hand() -> None:
    assert rmse(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 8.0]])) == 2.0


@pytest.mark.parametrize("recipe", ["deep", "grbm"])
def test_a_sample_is_the_same_in_any_chunk(recipe: str, trained: Path, tmp_path: Path) -> None:
    folder = trained
    if recipe == "grbm":
        folder = tmp_path / "grbm"
        assert main(["train", "digits", "--method", "dsm", "--steps", "5", "--out", str(folder)]) == 0
    run = SavedRun.open(folder)
    for kind in ("given-h", "joint") if recipe == "deep" else (None,):
        sampler = sampling.sampler_of(run, steps=3, target=kind)
        whole, end = sampler.sample(run, "last", 7, 5).values, sampler.sample(run, "last", 3, 5, first=4).values
        torch.testing.assert_close(end, whole[4:], rtol=1e-4, atol=1e-4)
    if recipe == "deep":  # beyond the 1400 training samples that h comes from
        sampling.sampler_of(run, steps=1, target="given-h").sample(run, "last", 2, 5, first=1399)


def test_a_run_of_another_version(run: Path, capsys) -> None:
    path = next((run / "checkpoints").glob("*30.pt"))
    payload = checkpoint.read(path)
    payload.pop("version")
    theta = payload["best"]["theta"]
    theta["old_name"] = theta.pop(next(iter(theta)))
    checkpoint.write(path, payload)
    assert "was written by another version: its parameters differ" in failure(capsys, str(run))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"wibble": 1}))
    assert "has an option 'wibble' that this version does not know" in failure(capsys, str(run))


def test_data_of_another_shape(run: Path, tmp_path: Path, capsys) -> None:
    config = json.loads((run / "config.json").read_text())
    np.savez(tmp_path / "mnist.npz", **{f"{a}_{s}": np.zeros((20, *size), np.uint8) for s in ("train", "test")
                                        for a, size in (("x", (28, 28)), ("y", ()))})  # fmt: skip
    changed = config | {"recipe": "mnist", "dataset": {"kind": "mnist", "data": str(tmp_path / "mnist.npz")}}
    (run / "config.json").write_text(json.dumps(changed))
    assert "samples of shape [1, 32, 32] need" in failure(capsys, str(run))
    (run / "config.json").write_text(json.dumps(config))
    np.savez(tmp_path / "colour.npz", x_test=np.zeros((5, 8, 8, 3), np.uint8))
    assert "got images of 3x8x8, expected 1x8x8" in failure(capsys, str(run), "--ood", str(tmp_path / "colour.npz"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--step 17", "has no checkpoint of step 17; it kept 10, 20, 30"),
        ("--fid 1", "got --fid 1, expected 4 or more"),
        ("--shard 2/2 --fid 10", "expected R/W such as 0/4"),
        ("--shard torchrun --fid 10", "there is no RANK and WORLD_SIZE of torchrun"),
        ("--shard 0/2", "--shard divides the work of --fid COUNT; give both"),
        ("--inception nowhere.pt --fid 10", "the Inception weights nowhere.pt do not exist"),
        ("--ood nowhere.npz", "nowhere.npz does not exist"),
        ("--study early", "invalid choice: 'early'"),
    ],
)
def test_bad_options(options: str, sentence: str, trained: Path, capsys) -> None:
    assert sentence in failure(capsys, str(trained), *options.split())


def test_neither_a_folder_nor_a_comparison(capsys) -> None:
    assert "give the folder of a run, or --compare" in failure(capsys)


def test_fid_is_for_images(tmp_path: Path, capsys) -> None:
    out = tmp_path / "board"
    assert main(["train", "checkerboard", "--method", "dsm", "--steps", "5", "--out", str(out)]) == 0
    assert "is a run on points; remove --fid" in failure(capsys, str(out), "--fid", "10")
    assert "is a run on points" in failure(capsys, str(out), "--ood", "x.npz")
    facts = evaluation(out)
    assert "neighbour_distance_samples" not in facts["mean"]
    assert facts["mean"]["auroc_uniform"] > 0.4
