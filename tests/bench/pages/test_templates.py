"""Filling in a template: blocks of records, notes, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest

from eblvm.bench.pages.templates import TemplateError, fill
from eblvm.bench.tools import record
from eblvm.engine.errors import UserError

FIGURES = {"s/1": lambda shown, notes: {"ms": str(shown["ms"]), "why": notes.get(shown["name"], "")}}


def written(folder: Path, name: str, ms: float, **facts: Any) -> None:
    record.write({"schema": "s/1", "name": name, "ms": ms, "machine": {"cpu": "x"}} | facts, folder)


def test_a_block_shows_the_newest_record_of_each_kind(tmp_path: Path) -> None:
    written(tmp_path, "toy", 1)
    written(tmp_path, "toy", 2)
    written(tmp_path, "toy", 3, compiled=True)
    page = fill("# Page\n\n<!-- records: toy -->\n## A toy {{why}}\n\n{{ms}} ms\n<!-- end -->\n", tmp_path, FIGURES)
    assert page == "# Page\n\n## A toy \n\n2 ms\n\n## A toy \n\n3 ms\n"


def test_a_file_is_shown_by_the_first_block_that_matches(tmp_path: Path) -> None:
    for name, ms in (("deep", 1), ("deep-lean", 2), ("deep-wide", 3)):
        written(tmp_path, name, ms)
    starts = ("deep-wide -->\nwide ", "deep* -->\n")
    template = "\n".join(f"<!-- records: {start}{{{{ms}}}}{{{{why}}}}\n<!-- end -->\n" for start in starts)
    assert fill(template, tmp_path, FIGURES) == "wide 3\n\n1\n\n2\n"


def test_a_note_is_shown_where_a_figure_asks_for_it(tmp_path: Path) -> None:
    written(tmp_path, "toy", 1)
    note = "<!-- note: toy | other -->\nit\nis small\n<!-- end -->\n"
    assert (
        fill(f"<!-- records: toy -->\n{{{{ms}}}}: {{{{why}}}}\n<!-- end -->\n\n{note}", tmp_path, FIGURES)
        == "1: it is small\n"
    )


def test_without_a_record_there_is_no_block(tmp_path: Path) -> None:
    template = "before\n\n<!-- records: toy -->\n{{ms}} {{why}}\n<!-- end -->\n\nafter\n"
    assert fill(template, tmp_path, FIGURES) == "before\n\nafter\n"


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ("{{ms}} {{why}} {{mib}}", "has no figure 'mib'; it has ms, why"),
        ("{{ms}}", "does not show 'why'"),
    ],
)
def test_names_and_figures_have_to_fit(tmp_path: Path, block: str, sentence: str) -> None:
    written(tmp_path, "toy", 1)
    with pytest.raises(TemplateError, match=sentence):
        fill(f"<!-- records: toy -->\n{block}\n<!-- end -->\n", tmp_path, FIGURES)


def test_a_place_outside_of_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="outside of a block"):
        fill("{{ms}} ms\n", tmp_path, FIGURES)


def test_a_record_that_no_figures_are_known_of_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "toy", 1, schema="s/2")
    with pytest.raises(UserError, match="has schema 's/2', expected 's/1'"):
        fill("<!-- records: toy -->\n{{ms}}{{why}}\n<!-- end -->\n", tmp_path, FIGURES)
