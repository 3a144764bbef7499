"""Image data sets from small files in the expected formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eblvm.engine.data import load
from eblvm.engine.data.images import celeba, resized
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe


def archive(path: Path, shape: tuple[int, ...]) -> Path:
    generator = np.random.default_rng(0)
    arrays = {f"x_{s}": generator.integers(0, 256, (n, *shape), np.uint8) for s, n in (("train", 40), ("test", 10))}
    labels = {f"y_{s}": generator.integers(0, 10, n) for s, n in (("train", 40), ("test", 10))}
    np.savez(path, **arrays, **labels)
    return path


def test_mnist_gets_a_frame(tmp_path: Path) -> None:
    path = archive(tmp_path / "mnist.npz", (28, 28))
    dataset = load(recipe("mnist").replaced(data=str(path)))
    assert dataset.train.shape == (36, 1, 32, 32)
    assert dataset.valid.shape == (4, 1, 32, 32)
    assert dataset.train.dtype == torch.uint8
    assert torch.equal(dataset.train[0, 0, 2:30, 2:30], torch.from_numpy(np.load(path)["x_train"][0]))
    assert not dataset.train[:, :, :2].any()
    assert dataset.train_labels is not None
    assert len(dataset.train_labels) == 36
    v = dataset.floats(dataset.train[:2])
    assert v.dtype == torch.float32
    assert float(v.max()) <= 1


def test_colour_images_are_channels_first(tmp_path: Path) -> None:
    path = archive(tmp_path / "cifar.npz", (32, 32, 3))
    dataset = load(recipe("cifar10").replaced(data=str(path)))
    assert torch.equal(dataset.test[3].permute(1, 2, 0), torch.from_numpy(np.load(path)["x_test"][3]))


def test_resized_averages_areas() -> None:
    v = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    v[0, 0, :2, :2] = torch.tensor([[10, 20], [30, 40]])
    assert resized(v, 2)[0, 0].tolist() == [[25, 0], [0, 0]]


def test_celeba_is_cut_in_the_middle(tmp_path: Path) -> None:
    for i in range(20):
        picture = np.zeros((218, 178, 3), np.uint8)
        picture[39 : 39 + 140, 19 : 19 + 140] = 12 * i  # what the crop keeps
        picture[:39] = 255
        Image.fromarray(picture).save(tmp_path / f"{i:06}.png")
    dataset = celeba(tmp_path, 64)
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (18, 1, 1)
    assert dataset.train[5].shape == (3, 64, 64)
    assert dataset.train[5].unique().tolist() == [60]


def test_an_unreadable_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "000001.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"000001.jpg cannot be read as a picture"):
        celeba(tmp_path, 32)
