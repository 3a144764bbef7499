"""Data sets of other libraries, read into memory: map-style sets of torch.utils.data or of Hugging Face."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.engine.errors import UserError

SAMPLE_KEYS = ("image", "img", "pixel_values", "x", "data")  # of a mapping, the first that is there
LABEL_KEYS = ("label", "labels", "y", "target")


def in_memory(data: Any) -> tuple[Tensor, Tensor | None]:
    """(samples [n, ...], labels [n] or None) of arrays, lists of numbers, or anything with `len` and `[i]`.

    An item is a sample, a pair (sample, label), or a mapping with one of SAMPLE_KEYS. A sample is a tensor, an array or
    a picture; pictures and byte arrays of height x width (x channels) become uint8 [C, H, W]."""
    if isinstance(data, Mapping):
        names, first = ", ".join(map(str, data)) or "nothing", next(iter(data), "train")
        raise UserError(f"got a mapping of {names}, expected one set; give one of its splits, as data[{first!r}]")
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        got = type(data).__name__
        raise UserError(f"got data of type {got}, expected a tensor, a Dataset, or a set with len and [i]")
    if (numbers := _numbers(data)) is not None:
        return numbers, None
    pairs = [_pair(data[i], i) for i in range(len(data))]
    if not pairs:
        raise UserError("got an empty data set, expected samples")
    shapes = {tuple(sample.shape) for sample, _ in pairs}
    if len(shapes) > 1:
        two = " and ".join(str(list(shape)) for shape in sorted(shapes)[:2])
        raise UserError(f"got samples of different shapes ({two}); resize them to one, or use the recipe 'images'")
    labels = [label for _, label in pairs]
    known = all(isinstance(label, int | np.integer) or _is_scalar(label) for label in labels)
    return torch.stack([sample for sample, _ in pairs]), torch.tensor([int(x) for x in labels]) if known else None


def _numbers(data: Any) -> Tensor | None:
    """Samples of numbers as one tensor of float32; bytes may be pictures, and are left to `_sample`."""
    if not isinstance(data, np.ndarray) and not (isinstance(data, list) and data and isinstance(data[0], list)):
        return None
    try:
        array = np.asarray(data)
    except ValueError:  # rows of different lengths
        return None
    if array.ndim < 2 or array.dtype.kind not in "fiu" or array.dtype == np.uint8:
        return None
    return torch.from_numpy(np.ascontiguousarray(array, np.float32))


def _is_scalar(label: Any) -> bool:
    return isinstance(label, Tensor) and label.dim() == 0 and not label.is_floating_point()


def _pair(item: Any, place: int) -> tuple[Tensor, Any]:
    if isinstance(item, Mapping):
        key = next((k for k in SAMPLE_KEYS if k in item), None)
        if key is None:
            got, expected = ", ".join(map(str, item)), " or ".join(SAMPLE_KEYS)
            raise UserError(f"item {place} has the keys {got}, expected {expected}")
        return _sample(item[key]), next((item[k] for k in LABEL_KEYS if k in item), None)
    if isinstance(item, Sequence) and not isinstance(item, str | bytes):
        return _sample(item[0]), item[1] if len(item) > 1 else None
    return _sample(item), None


def _sample(value: Any) -> Tensor:
    """A sample in the engine's layout: channels first."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)  # of a picture too
    if array.dtype == np.uint8 and array.ndim == 2:
        array = array[None]
    elif array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] in (1, 3) and array.shape[0] not in (1, 3):
        array = np.moveaxis(array, -1, 0)
    return torch.from_numpy(np.array(array, order="C"))  # a copy: a picture's own memory may not be written to
