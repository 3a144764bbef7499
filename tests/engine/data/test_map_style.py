"""Data sets of other libraries: items as they come, labels, and one sentence for what cannot be used."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from eblvm.engine.api import as_dataset
from eblvm.engine.data.map_style import in_memory
from eblvm.engine.errors import UserError


def test_pairs_mappings_and_pictures() -> None:
    v, y = torch.rand(40, 3), torch.arange(40)
    found = as_dataset(TensorDataset(v, y))
    assert torch.equal(found.valid, v[9::20])
    assert torch.equal(found.test, v[19::20])
    assert found.test_labels is not None
    assert found.test_labels.tolist() == [19, 39]
    bytes_HWC = np.random.default_rng(0).integers(0, 256, (2, 6, 5, 3), dtype=np.uint8)
    pictures = [{"image": Image.fromarray(x), "label": i} for i, x in enumerate(bytes_HWC)]
    samples, labels = in_memory(pictures)
    assert samples.dtype == torch.uint8
    assert torch.equal(samples, torch.from_numpy(bytes_HWC).permute(0, 3, 1, 2))
    assert labels is not None
    assert labels.tolist() == [0, 1]
    grey, none = in_memory([Image.fromarray(bytes_HWC[0, ..., 0])])
    assert grey.shape == (1, 1, 6, 5)
    assert none is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([{"audio": 1}], "keys audio"),
        ([torch.zeros(2), torch.zeros(3)], "different shapes"),
        ([], "empty"),
        (3, "type int"),
        ({"train": [torch.zeros(2)], "test": []}, r"mapping of train, test, expected one set.*data\['train'\]"),
    ],
)
def test_what_cannot_be_used(data: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        in_memory(data)
