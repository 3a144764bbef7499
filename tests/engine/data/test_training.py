"""`eblvm train` on a folder of pictures with no step before it, from memory and streamed, with an exact resume."""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine.cli import main
from eblvm.engine.data.pictures.framing import has_dali
from eblvm.engine.runs import checkpoint

needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
TINY = (
    "--method mdsm --width 2 --depth 12 --head-width 4 --batch 4 --validations 1 --checkpoint-every 3 --size 8 "
    "--schedule constant".split()
)


def state_of(folder: Path) -> list[torch.Tensor]:
    payload, _ = checkpoint.newest(folder / "checkpoints")
    assert payload is not None
    return tree_flatten(payload["state"])[0]


@pytest.mark.parametrize("path", ["memory", "pillow", pytest.param("dali", marks=needs_dali)])
def test_training_on_a_folder_of_pictures_resumes_bitwise(path: str, pictures: Path, tmp_path: Path, capsys) -> None:
    options = [*TINY, "--data", str(pictures), "--cache", str(tmp_path / "cache"), "--input", path, "--flip"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(["train", "celeba64", *options, "--steps", "8", "--out", str(whole)]) == 0
    assert f"preparing {pictures} at 8 pixels, once" in capsys.readouterr().err
    assert main(["train", "celeba64", *options, "--steps", "3", "--out", str(parts)]) == 0
    assert main(["train", "celeba64", *options, "--steps", "8", "--out", str(parts)]) == 0
    assert f"preparing {pictures}" not in capsys.readouterr().err
    for a, b in zip(state_of(whole), state_of(parts), strict=True):
        assert torch.equal(a, b)
    assert sorted(p.name for p in pictures.parent.iterdir()) == ["cache", "img_align_celeba", "parts", "whole"]
    assert len(list(pictures.iterdir())) == 24


@needs_dali
def test_memory_and_stream_train_the_same_model(pictures: Path, tmp_path: Path) -> None:
    for path in ("memory", "dali"):
        options = [*TINY, "--data", str(pictures), "--cache", str(tmp_path / "cache"), "--input", path, "--dequantize"]
        assert main(["train", "celeba64", *options, "--steps", "3", "--out", str(tmp_path / path)]) == 0
    for a, b in zip(state_of(tmp_path / "memory"), state_of(tmp_path / "dali"), strict=True):
        assert torch.equal(a, b)


def test_training_takes_a_prepared_store(pictures: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    assert main(["data", "prepare", str(pictures), str(store), "--size", "8"]) == 0
    assert main(["train", "celeba64", *TINY, "--data", str(store), "--steps", "1", "--out", str(tmp_path / "run")]) == 0
