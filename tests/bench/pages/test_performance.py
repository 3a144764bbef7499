"""The figures of docs/performance.md."""

import json
from pathlib import Path

import pytest

from eblvm.bench.pages import pages
from eblvm.bench.tools import records
from eblvm.engine.errors import UserError


def test_page_shows_the_figures_of_a_record(tmp_path: Path) -> None:
    path = records.RECORDS / "toy.jsonl"
    result = records.read(path, "eblvm-bench/1")
    result["rows"][0] |= {"engine_ms": 12.345, "saved_mib": None}
    (tmp_path / path.name).write_text(json.dumps(result))
    page = pages.render("performance", tmp_path)
    (line,) = [line for line in page.splitlines() if result["rows"][0]["case"] + " |" in line]
    assert "| 12.3 |" in line
    assert "| - |" in line
    assert result["commit"] in page


def test_a_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "toy.jsonl").write_text('{"rows": []}')
    with pytest.raises(UserError, match="has schema 'none'"):
        pages.render("performance", tmp_path)
