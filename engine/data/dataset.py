"""A data set in memory, as training and evaluation see it."""

from typing import NamedTuple

import torch
from torch import Tensor


class Dataset(NamedTuple):
    train: Tensor  # [n, D], or images [n, C, S, S]; uint8 stands for multiples of 1/255
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
