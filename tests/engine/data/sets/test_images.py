"""Image data sets of the recipes from small files in the published formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eblvm.engine.data.dataset import resized
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe

from ..conftest import cifar_files, write_mnist, write_tar


@pytest.mark.parametrize("packed", [None, False, True])
def test_mnist_gets_a_frame(packed: bool | None, mnist: dict, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    if packed is None:
        np.savez(path, **mnist)
    else:
        path = write_mnist(tmp_path, mnist, packed)
    dataset = recipe("mnist").replaced(data=str(path)).load_data()
    assert dataset.train.shape == (36, 1, 32, 32)
    assert dataset.valid.shape == (4, 1, 32, 32)
    assert dataset.train.dtype == torch.uint8
    assert torch.equal(dataset.train[0, 0, 2:30, 2:30], torch.from_numpy(mnist["x_train"][0]))
    assert not dataset.train[:, :, :2].any()
    assert dataset.train_labels is not None
    assert dataset.train_labels.tolist() == mnist["y_train"][:36].tolist()
    v = dataset.floats(dataset.train[:2])
    assert v.dtype == torch.float32
    assert float(v.max()) <= 1


def test_cifar10_from_its_archive(cifar: dict, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "cifar-10-python.tar.gz", cifar_files(cifar, binary=False))
    dataset = recipe("cifar10").replaced(data=str(path)).load_data()
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (45, 5, 10)
    assert torch.equal(dataset.test[3].permute(1, 2, 0), torch.from_numpy(cifar["x_test"][3]))


def test_frey_face_is_split_as_in_the_papers(frey: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "frey.npz", x=frey)
    dataset = recipe("freyface").replaced(data=str(tmp_path / "frey.npz")).load_data()
    assert [tuple(part.shape) for part in dataset[:3]] == [(1400, 560), (300, 560), (265, 560)]
    expected = torch.from_numpy(frey.reshape(1965, -1) / 255).float()
    assert torch.equal(torch.cat(dataset[:3]), expected)
    np.savez(tmp_path / "frey.npz", x=frey[:900])
    with pytest.raises(UserError, match="has 900 faces, expected Frey face's 1965"):
        recipe("freyface").replaced(data=str(tmp_path / "frey.npz")).load_data()


def test_another_recipes_data_is_refused(cifar: dict, tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar.npz", **cifar)
    config = recipe("mnist").replaced(data=str(tmp_path / "cifar.npz"))
    with pytest.raises(UserError, match=r"has images of 3x32x32, expected 1x28x28 of recipe 'mnist'"):
        config.load_data()
    with pytest.raises(UserError, match="--input dali decodes pictures"):
        recipe("celeba32").replaced(data=str(tmp_path / "cifar.npz"), input="dali").load_data()
    with pytest.raises(UserError, match="data set 'cifar10' does not read --input; it is an option of"):
        recipe("cifar10").replaced(data=str(tmp_path / "cifar.npz"), input="dali")
    np.savez(tmp_path / "half.npz", x_test=cifar["x_test"])
    with pytest.raises(UserError, match=r"half.npz has no train and no valid images"):
        recipe("cifar10").replaced(data=str(tmp_path / "half.npz")).load_data()


def test_resized_averages_areas() -> None:
    v = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    v[0, 0, :2, :2] = torch.tensor([[10, 20], [30, 40]])
    assert resized(v, 2)[0, 0].tolist() == [[25, 0], [0, 0]]


def test_a_folder_of_pictures_is_prepared_once_and_cached(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, cache = tmp_path / "faces", tmp_path / "cache"
    folder.mkdir()
    for i in range(20):
        picture = np.zeros((218, 178, 3), np.uint8)
        picture[39 : 39 + 140, 19 : 19 + 140] = 12 * i  # what the crop keeps
        picture[:39] = 255
        Image.fromarray(picture).save(folder / f"{i:06}.png")
    config = recipe("celeba64").replaced(data=str(folder), cache=str(cache))
    dataset = config.load_data()
    assert (len(dataset.train), len(dataset.valid), len(dataset.test)) == (18, 1, 1)
    assert dataset.train[5].shape == (3, 64, 64)
    assert dataset.train[5].unique().tolist() == [60]
    wider = config.replaced(crop=160).load_data().train[5]  # 10 black pixels of 160 at each side
    assert wider[0, 32, :3].tolist() == [0, 0, 0]
    assert wider[0, 32, 32] == 60
    said = capsys.readouterr().err
    assert f"preparing {folder} at 64 pixels, once, into {cache}" in said
    assert len(list(folder.iterdir())) == 20

    again = config.load_data()
    assert torch.equal(again.train, dataset.train)
    assert "preparing" not in capsys.readouterr().err
    Image.new("RGB", (178, 218)).save(folder / "000020.png")
    assert len(config.load_data().train) == 19
    assert "preparing" in capsys.readouterr().err
    Image.new("RGB", (178, 218), (9, 9, 9)).save(folder / "000000.png")
    assert config.load_data().train[0].unique().tolist() == [9]


def test_an_unreadable_picture_is_named(pictures: Path, tmp_path: Path) -> None:
    (pictures / "000003.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"000003.jpg cannot be read as a picture .* 1 of 24 pictures are unreadable"):
        recipe("celeba32").replaced(data=str(pictures), cache=str(tmp_path / "cache")).load_data()
