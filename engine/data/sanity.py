"""What is wrong with the values of a data set, seen before the first step: the advice then names the data."""

import torch
from torch import Tensor

from eblvm.engine.data.dataset import Dataset
from eblvm.engine.errors import UserError

LARGEST = 1e6  # models and their noise are scaled for data of about 1
CHUNK = 4096  # samples that are looked at together


def check_values(dataset: Dataset, where: str) -> None:
    """Refuse NaN, infinite and far too large values in any split, and training samples that are all the same."""
    for split in ("train", "valid", "test"):
        v = getattr(dataset, split)
        if isinstance(v, Tensor) and v.dtype.is_floating_point:
            _check_finite(v, split, where)
    if isinstance(dataset.train, Tensor) and len(dataset.train) > 1 and _all_the_same(dataset.train):
        raise UserError(
            f"{where}: all {len(dataset.train)} training samples are the same, so there is nothing to learn; look at "
            "the data ('eblvm data info'), and give a set that varies"
        )


def _check_finite(v: Tensor, split: str, where: str) -> None:
    for first, chunk in zip(range(0, len(v), CHUNK), v.split(CHUNK), strict=True):
        size = chunk.abs().flatten(1).amax(1) if chunk[0].numel() else chunk.new_zeros(len(chunk))
        bad = ~(size <= LARGEST)  # NaN is not
        if not bool(bad.any()):
            continue
        number = int(bad.nonzero()[0])
        value = chunk[number].flatten()
        worst = value[~(value.abs() <= LARGEST)][0]
        what = "is not a number" if worst.isnan() else "is infinite" if worst.isinf() else f"is above {LARGEST:g}"
        raise UserError(
            f"{where}: sample {first + number} of the {split} split holds {float(worst):g}, which {what}; repair or "
            "remove such samples, and scale values to about 1"
        )


def _all_the_same(v: Tensor) -> bool:
    return all(bool(torch.equal(chunk, v[:1].expand_as(chunk))) for chunk in v.split(CHUNK))
