"""`eblvm bench data`: its rows and its bars."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from eblvm.bench.measurements import data
from eblvm.engine.data.pictures.framing import has_dali
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe


def result(ratio: float, fetch: float, hidden: float) -> dict[str, Any]:
    rows = [data.row(f"input={name} size=64", images_per_s=1.0, ratio=ratio) for name in ("pillow", "dali", "store")]
    return {"rows": [*rows, *(data.row(f"input={n}", percent=p) for n, p in (("memory", fetch), ("dali", hidden)))]}


def test_the_bars() -> None:
    assert data.problems(result(20, 2, 90)) == []
    (missed,) = data.problems(result(19.9, 2, 90))
    assert missed.startswith("the store gives 19.9 times")
    assert len(data.problems(result(19, 2.1, 89))) == 3


def test_no_pictures_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBLVM_DATA", str(tmp_path))
    with pytest.raises(UserError, match="give --data the folder of CelebA's"):
        data.default_pictures()


@pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
def test_every_row_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(24):
        Image.new("RGB", (89, 109), (i, 2 * i, 3 * i)).save(tmp_path / f"{i:06}.jpg")
    tiny = {"width": 2, "depth": 12, "head_width": 4, "posterior_width": 2, "batch": 4}
    monkeypatch.setattr(data, "recipe", lambda name, small: recipe(name, small=small).replaced(**tiny))
    monkeypatch.setattr(data, "CHUNK", 8)
    monkeypatch.setattr(data, "STREAMED", 2)
    result = data.run(1, tmp_path, progress=False)
    assert result["pictures"] == 24
    rows = {row["case"]: row for row in result["rows"]}
    assert list(rows) == [
        "input=pillow size=64", "input=dali size=64", "input=store size=64", "input=memory recipe=cifar10 small=yes",
        "input=dali recipe=celeba64 small=yes",
    ]  # fmt: skip
    assert all(row["images_per_s"] > 0 for row in result["rows"][:3])
    assert rows["input=memory recipe=cifar10 small=yes"]["percent"] < 100
    assert len(data.format_table(result).splitlines()) == 6
