"""A folder of classes, drawn by the test: looked at, trained on, evaluated, shared and sampled elsewhere."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import eblvm
from eblvm.engine.data.readers import read
from tests.journeys.journey import SHAPES, Journey, draw_shapes

SMALL = "--small --size 8 --width 4 --posterior-width 4 --latent 4 --batch 8 --log-every 5 --validations 2 --steps 10"


@pytest.fixture
def journey(tmp_path: Path) -> Journey:
    draw_shapes(tmp_path / "shapes", 20)
    return Journey(tmp_path)


def test_every_split_has_every_class_in_proportion(journey: Journey) -> None:
    """By the names of the files: the reader's own labels are not asked."""
    whole = read(journey.folder / "shapes")
    assert whole.classes == SHAPES
    splits = whole.divided(seed=0).splits
    seen = []
    for name, expected in (("train", 18), ("valid", 1), ("test", 1)):
        of_name = [path.parent.name for path in splits[name].images.files]
        assert [of_name.count(shape) for shape in SHAPES] == [expected] * 3
        assert [SHAPES[label] for label in splits[name].labels] == of_name
        seen += splits[name].images.files
    assert sorted(seen) == sorted(whole.splits["all"].images.files)
    other = whole.divided(seed=1).splits["test"].images.files
    assert other != splits["test"].images.files
    assert whole.divided().splits["train"].images.files == whole.splits["all"].images.files[:54]  # as runs of before


def test_labels_of_unequal_classes_stay_in_proportion() -> None:
    labels = np.repeat([0, 1, 2], [500, 300, 200])
    from eblvm.engine.data.contents import Contents, Split

    whole = Contents("arrays", {"all": Split(np.arange(1000)[:, None], labels)})
    for name, size in (("train", 900), ("valid", 50), ("test", 50)):
        part = whole.divided(seed=3).splits[name]
        assert np.array_equal(labels[part.images[:, 0]], part.labels)
        assert np.abs(np.bincount(part.labels) - np.array([0.5, 0.3, 0.2]) * size).max() <= 1


def test_data_info_shows_the_splits_and_the_classes(journey: Journey) -> None:
    said = journey.run("eblvm data info shapes")
    assert "train             54 images, pictures of any size, 3 classes: circle 18, cross 18, square 18" in said
    assert "test              3 images, pictures of any size, 3 classes: circle 1, cross 1, square 1" in said


@pytest.mark.parametrize("place", ["memory", "store", "pillow", "dali"])
def test_every_input_is_trained_evaluated_and_reported(journey: Journey, place: str) -> None:
    if place == "dali":
        pytest.importorskip("nvidia.dali")
    data, how = "shapes", f"--input {place}"
    if place == "store":
        journey.run("eblvm data prepare shapes shapes.store --size 8")
        data, how = "shapes.store", ""
    journey.run(f"eblvm train images --data {data} {SMALL} {how} --out run")
    journey.run("eblvm eval run")
    journey.run("eblvm sample run --count 4 --steps 3")
    journey.run("eblvm report run")
    figures = json.loads((journey.folder / "run/eval.json").read_text())["mean"]
    assert 0 <= figures["svm_posterior_accuracy"] <= 1
    assert (journey.folder / "run/report.html").stat().st_size > 10_000


def test_inputs_give_the_same_figures(tmp_path: Path) -> None:
    """Of pictures that nothing resizes, so that decoders agree to the bit: in memory, and streamed."""
    draw_shapes(tmp_path / "shapes", 20, size=(16, 16))
    journey, found = Journey(tmp_path), {}
    for place in ("memory", "pillow"):
        journey.run(f"eblvm train images --data shapes {SMALL} --size 16 --input {place} --out {place}")
        journey.run(f"eblvm eval {place}")
        facts = json.loads((tmp_path / place / "eval.json").read_text())
        found[place] = facts["data"], facts["weights"], facts["mean"]
    assert found["memory"] == found["pillow"]


def test_bidvl_of_own_pictures_chooses_its_model(journey: Journey) -> None:
    journey.run(f"eblvm train images --method bidvl --data shapes {SMALL.replace('size 8', 'size 32')} --out run")
    config = json.loads((journey.folder / "run/config.json").read_text())
    assert config["model"]["kind"] == "sn-conv"
    journey.run("eblvm sample run --count 4")
    said = journey.run("eblvm train images --small --method bidvl --model deep --data shapes --out other", code=2)
    assert "--model sn-conv or sn-resnet" in said
    journey.follow()


def test_an_export_samples_elsewhere_as_the_run_does(
    journey: Journey, tmp_path_factory: pytest.TempPathFactory
) -> None:
    journey.run(f"eblvm train images --data shapes {SMALL} --out run")
    journey.run("eblvm export run --out shared")
    own = eblvm.load(journey.folder / "run", data=journey.folder / "shapes")
    expected = own.sample(3, steps=4)
    elsewhere = shutil.copytree(journey.folder / "shared", tmp_path_factory.mktemp("elsewhere") / "model")
    shutil.rmtree(journey.folder / "shapes")
    shared = eblvm.load(elsewhere)
    assert torch.equal(shared.sample(3, steps=4), expected)
    assert shared.sample(3, steps=4, seed=1).shape == expected.shape
    assert shared.sample(2, steps=4, kind="interpolation").isfinite().all()


@pytest.mark.long
def test_printed_commands_of_a_deep_model_run(journey: Journey) -> None:
    """Its samples take 2,700 Langevin steps."""
    journey.run(f"eblvm train images --data shapes {SMALL} --out run")
    journey.run("eblvm eval run")
    journey.run("eblvm report run")
    journey.run("eblvm export run --out shared")
    journey.run("eblvm runs show run")
    journey.follow()


def test_a_failed_export_leaves_what_was_there(journey: Journey, monkeypatch: pytest.MonkeyPatch) -> None:
    journey.run(f"eblvm train images --data shapes {SMALL} --out run")

    def full(*_: object) -> None:
        raise eblvm.UserError("no space is left")

    monkeypatch.setattr("eblvm.engine.sharing.card", full)
    journey.run("eblvm export run --out shared", code=2)
    assert sorted(path.name for path in journey.folder.iterdir()) == ["run", "shapes"]


def test_fid_reads_the_folders_that_train_reads(journey: Journey) -> None:
    said = journey.run("eblvm fid shapes shapes")
    assert "60 images of shapes against 60 of shapes" in said
    distance = float(said.partition("\nFID ")[2].split()[0])
    assert abs(distance) < 1e-2
