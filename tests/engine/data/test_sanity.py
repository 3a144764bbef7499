"""Data that no model can learn from is named before the first step, in every split."""

import math
from pathlib import Path

import pytest
import torch

import eblvm
from eblvm.engine.data.dataset import Dataset, check_values
from eblvm.engine.errors import UserError


def points(count: int = 40) -> torch.Tensor:
    return torch.linspace(0, 1, 2 * count).view(count, 2)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
@pytest.mark.parametrize(
    ("value", "what"),
    [(math.nan, "is not a number"), (math.inf, "is infinite"), (-math.inf, "is infinite"), (3e7, "is above 1e+06")],
)
def test_values_that_are_no_data(split: str, value: float, what: str) -> None:
    data = Dataset(points(), points(), points())
    getattr(data, split)[17, 1] = value
    with pytest.raises(UserError, match=f"mine: sample 17 of the {split} split contains .*") as error:
        check_values(data, "mine")
    assert what in str(error.value)
    assert "lr" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_constant_training_data(dtype: torch.dtype) -> None:
    same = torch.full((9000, 3), 7, dtype=dtype)
    with pytest.raises(UserError, match="all 9000 training samples are the same"):
        check_values(Dataset(same, points(), points()), "mine")
    same[8999, 2] = 8
    check_values(Dataset(same, points(), points()), "mine")


def test_training_says_so_before_its_first_step(tmp_path: Path) -> None:
    bad = points(200)
    bad[3, 0] = math.nan
    with pytest.raises(UserError, match="sample 3 of the test split contains nan"):
        eblvm.train(
            "checkerboard", method="dsm", steps=2, out=tmp_path / "run", data=Dataset(points(200), points(), bad)
        )
    assert not (tmp_path / "run").exists()


def test_options_that_the_data_cannot_follow_make_no_folder(tmp_path: Path) -> None:
    v = torch.rand(200, 3, 32, 32)
    with pytest.raises(UserError, match="flip and dequantize are for images of bytes, data set 'cifar10' has none"):
        eblvm.train("cifar10", steps=2, flip=True, out=tmp_path / "run", data=Dataset(v, v[:9], v[:9]))
    assert not (tmp_path / "run").exists()
