"""The FID check: a sample's bias is told from a difference."""

from pathlib import Path

import numpy as np
import pytest
import torch

from eblvm.bench.measurements import fid
from eblvm.bench.pages import pages
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics import inception
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


def test_the_control_is_the_bias_of_the_sample_size() -> None:
    """Equal distributions in 20 dimensions: all FID is bias, about half as large at twice the size, and is removed."""
    train, test = (philox.normal(Key(seed, 0), 0, n, (20,)) for seed, n in ((1, 8000), (2, 4000)))
    small, large, whole = fid.measure(train, test, [2000, 4000])
    assert small["fid"] == pytest.approx(2 * large["fid"], rel=0.25)
    assert small["fid_at_full_size"] < 0.3 * small["fid"]
    assert (whole["train_images"], whole["test_images"], whole["fid_control"]) == (8000, 4000, None)
    assert whole["fid"] == pytest.approx(0.75 * large["fid"], rel=0.25)  # 1/8000 + 1/4000 of 2/4000
    assert abs(whole["fid_at_full_size"]) < 0.3 * small["fid"]
    moved = fid.measure(train, test + 0.5, [4000])[0]
    assert moved["fid_at_full_size"] == pytest.approx(20 * 0.25, rel=0.05)


def test_record_and_page(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_CACHE", str(tmp_path / "cache"))
    mean = Extractor("inception", "mean", "0" * 64, 3, lambda images: images.float().mean((2, 3)))
    monkeypatch.setattr(inception, "load", lambda: mean)
    x = (philox.uniform(Key(1, 0), 0, 70, (32, 32, 3)) * 255).byte().numpy()
    np.savez(tmp_path / "c.npz", x_train=x[:50], x_test=x[50:])
    result = fid.run(tmp_path / "c.npz", [10, 20])
    assert [(row["train_images"], row["test_images"]) for row in result["rows"]] == [(10, 10), (20, 20), (50, 20)]
    assert torch.tensor([row["fid"] for row in result["rows"]]).isfinite().all()
    assert str(tmp_path) not in str(result)
    (tmp_path / "records").mkdir()
    fid.record.write(result, tmp_path / "records")
    assert "| 20 |" in pages.render("results", tmp_path / "records")
    with pytest.raises(UserError, match="has 50 images to train and 20 to test with, sizes up to 23 need 46 and 23"):
        fid.run(tmp_path / "c.npz", [23])
