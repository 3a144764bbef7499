"""The pages of the repository: every place of every template is filled, and a page that is older is told."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.bench.pages import pages
from eblvm.bench.pages.templates import BLOCK, PLACE
from eblvm.bench.tools.records import RECORDS

NOT_YET = ("study-posterior-features",)  # recorded


@pytest.mark.parametrize("name", pages.FIGURES)
def test_every_place_of_a_template_is_filled(name: str) -> None:
    template = (pages.TEMPLATES / f"{name}.md").read_text()
    assert PLACE.search(template)
    page = pages.render(name)
    assert not PLACE.search(page)
    assert "<!--" not in page
    for kind, pattern, _ in BLOCK.findall(template):
        assert kind == "note" or "*" in pattern or pattern in [*NOT_YET, *(p.stem for p in RECORDS.glob("*.jsonl"))]


def test_every_template_is_a_page() -> None:
    assert {path.stem for path in pages.TEMPLATES.glob("*.md")} == set(pages.FIGURES)


def test_a_page_and_a_picture_that_are_older_are_told(tmp_path: Path) -> None:
    """Of a copy: whether the repository's own are older says `eblvm bench pages --check`."""
    docs, folder = tmp_path / "docs", tmp_path / "records"
    docs.mkdir()
    folder.mkdir()
    for name in ("toy", "growth"):
        shutil.copy(RECORDS / f"{name}.jsonl", folder)
    for name in pages.FIGURES:
        (docs / f"{name}.md").write_text(pages.render(name, folder))
    (picture,) = pages.performance.pictures(folder)
    (told,) = pages.stale(docs, folder)
    assert told.startswith("docs/growth.png is older than growth.jsonl")
    pages.performance.draw(pages.performance.pictures(folder)[picture], docs / picture)
    assert pages.stale(docs, folder) == []
    (docs / "performance.md").write_text("old")
    (told,) = pages.stale(docs, folder)
    assert told.startswith("docs/performance.md is older than its template or records; run 'eblvm bench pages'")


def test_the_command_fails_with_an_older_page(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "stale", lambda: ["docs/results.md is older"])
    with pytest.raises(SystemExit) as stop:
        run("bench", "pages", "--check")
    assert stop.value.code == 1
    assert capsys.readouterr().err == "gate failed: docs/results.md is older\n"
    monkeypatch.setattr(pages, "stale", list)
    run("bench", "pages", "--check")
    assert "are what templates and records give" in capsys.readouterr().out
