"""Images as they are given: folders, archives and tensors, in the shape of a run's samples, or a clear refusal."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.image_sets import as_bytes, read_images

PIXELS = np.arange(2 * 8 * 8 * 3, dtype=np.uint16).astype(np.uint8).reshape(2, 8, 8, 3)
EXPECTED = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)


def test_archive_folder_and_tensor_agree(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x_test=PIXELS, x_train=PIXELS[:1])
    torch.save(EXPECTED.float() / 255, tmp_path / "set.pt")
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, picture in enumerate(PIXELS):
        Image.fromarray(picture).save(folder / f"{i}.png")
    for path in (tmp_path / "set.npz", tmp_path / "set.pt", folder):
        assert torch.equal(read_images(path, (3, 8, 8)), EXPECTED), path


def test_mnist_gets_its_frame_and_others_are_resized(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_test=np.full((3, 28, 28), 255, np.uint8))
    framed = read_images(tmp_path / "mnist.npz", (1, 32, 32))
    assert framed[:, :, 2:-2, 2:-2].eq(255).all()
    assert framed.double().mean() == pytest.approx(255 * 28**2 / 32**2)
    np.savez(tmp_path / "set.npz", x_test=PIXELS)
    halved = read_images(tmp_path / "set.npz", (3, 4, 4))
    assert torch.equal(halved, torch.nn.functional.avg_pool2d(EXPECTED.float(), 2).round().byte())


def test_clear_refusals(tmp_path: Path) -> None:
    np.savez(tmp_path / "grey.npz", x_test=PIXELS[..., 0])
    np.savez(tmp_path / "key.npz", faces=PIXELS)
    np.savez(tmp_path / "float.npz", x=PIXELS / 255)
    torch.save({"v": 1}, tmp_path / "dict.pt")
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    for name, sentence in {
        "grey.npz": "got images of 1x8x8, expected 3x8x8",
        "key.npz": "got keys faces, expected one of x_test, x",
        "float.npz": "expected uint8 images",
        "dict.pt": "expected one tensor of images",
        "broken.npz": "cannot be read as .npz",
        "empty": "has no .jpg",
        "nowhere": "does not exist",
    }.items():
        with pytest.raises(UserError, match=sentence):
            read_images(tmp_path / name, (3, 8, 8))


def test_bytes_are_rounded_and_clamped() -> None:
    assert as_bytes(torch.tensor([-0.1, 0.0, 0.5, 1.0, 1.7])).tolist() == [0, 0, 128, 255, 255]
