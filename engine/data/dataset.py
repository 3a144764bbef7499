"""A data set in memory, as training and evaluation see it; its values are checked before the first step."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.errors import UserError

LARGEST = 1e6  # models and their noise are scaled for data of about 1
CHUNK = 4096  # samples that are looked at, or resized, together
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey (ITU-R 601)


class Dataset(NamedTuple):
    train: Tensor  # [n, D], or images [n, C, S, S]; uint8 is multiples of 1/255
    valid: Tensor
    test: Tensor
    image_shape: tuple[int, int] | None = None  # of flat images, for pictures of them
    train_labels: Tensor | None = None
    test_labels: Tensor | None = None
    dtype: torch.dtype = torch.float32  # of what `floats` gives

    def to(self, device: str, dtype: torch.dtype) -> "Dataset":
        def place(t: Tensor) -> Tensor:
            return t.to(device) if t.dtype == torch.uint8 else t.to(device, dtype)

        train, valid, test = map(place, self[:3])
        return self._replace(train=train, valid=valid, test=test, dtype=dtype)

    def floats(self, v: Tensor) -> Tensor:
        """Samples as a model sees them; bytes become [0, 1]."""
        return v.to(self.dtype).div_(255) if v.dtype == torch.uint8 else v


def check_input(options: DataOptions, dataset: Dataset) -> None:
    """Refuse options of the input that this data cannot follow."""
    if options.input != "memory" and isinstance(dataset.train, Tensor):
        raise UserError(f"--input {options.input} decodes pictures, data set {options.kind!r} has none; remove --input")
    if (options.flip or options.dequantize) and dataset.train.dtype != torch.uint8:
        raise UserError(f"flip and dequantize are for images of bytes, data set {options.kind!r} has none; remove them")


def check_values(dataset: Dataset, where: str) -> None:
    """Refuse NaN, infinite and far too large values in any split, and training samples that are all the same."""
    for split in ("train", "valid", "test"):
        v = getattr(dataset, split)
        if isinstance(v, Tensor) and v.dtype.is_floating_point:
            _check_finite(v, split, where)
    v = dataset.train
    if isinstance(v, Tensor) and len(v) > 1 and all(chunk.equal(v[:1].expand_as(chunk)) for chunk in v.split(CHUNK)):
        raise UserError(
            f"{where}: all {len(v)} training samples are the same, so there is nothing to learn; look at "
            "the data ('eblvm data info'), and give a set that varies"
        )


def _check_finite(v: Tensor, split: str, where: str) -> None:
    for first, chunk in zip(range(0, len(v), CHUNK), v.split(CHUNK), strict=True):
        size = chunk.abs().flatten(1).amax(1) if chunk[0].numel() else chunk.new_zeros(len(chunk))
        bad = ~(size <= LARGEST)  # NaN is not
        if not bad.any():
            continue
        number = int(bad.nonzero()[0])
        value = chunk[number].flatten()
        worst = value[~(value.abs() <= LARGEST)][0]
        what = "is not a number" if worst.isnan() else "is infinite" if worst.isinf() else f"is above {LARGEST:g}"
        raise UserError(
            f"{where}: sample {first + number} of the {split} split contains {float(worst):g}, which {what}; repair or "
            "remove such samples, and scale values to about 1"
        )


def grey(v: Tensor) -> Tensor:
    """uint8 images [n, 3, H, W] as [n, 1, H, W]."""
    weights = torch.tensor(LUMA, device=v.device).view(1, 3, 1, 1)
    return torch.cat([(chunk[:, :3] * weights).sum(1, keepdim=True).round().byte() for chunk in v.split(CHUNK)])


def resized(v: Tensor, size: int | None) -> Tensor:
    """uint8 images [n, C, H, W] averaged over areas to squares of `size` pixels."""
    if size is None or v.shape[-2:] == (size, size):
        return v
    return torch.cat([F.adaptive_avg_pool2d(chunk.float(), size).round().byte() for chunk in v.split(CHUNK)])
