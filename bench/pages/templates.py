"""Pages from templates: Markdown with the prose, and places for the figures of records.

A template is a page with two kinds of blocks, each between a comment and `<!-- end -->`:

    <!-- records: deep* -->     repeated for the newest record of each kind in the files whose names match, but those
                                that an earlier block shows; {{name}} in it is filled with that record's figure
    <!-- note: KEY | KEY -->    left out of the page; its text is given to the figures, which show it where it applies

Every name that a block has must be a figure of its records, and every figure must have a name in the block.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from eblvm.bench.tools import records
from eblvm.bench.tools.records import Record
from eblvm.engine.errors import UserError

BLOCK = re.compile(r"<!-- (records|note): (.+?) -->\n(.*?)<!-- end -->\n", re.DOTALL)
PLACE = re.compile(r"\{\{(\w+)\}\}")

Notes = Mapping[str, str]
Figures = Mapping[str, Callable[[Record, Notes], dict[str, str]]]  # by a record's schema: its figures by name


class TemplateError(UserError):
    """A template and the figures of its records do not fit each other."""


def fill(template: str, folder: Path, figures: Figures) -> str:
    """The page: `template` with the newest records in `folder`."""
    notes = {
        key: " ".join(text.split())
        for kind, keys, text in BLOCK.findall(template)
        if kind == "note"
        for key in keys.split(" | ")
    }
    shown: set[str] = set()

    def block(match: re.Match[str]) -> str:
        kind, pattern, text = match.groups()
        if kind == "note":
            return ""
        chosen = [r for r in records.newest(folder, pattern, *figures) if r["file"] not in shown]
        shown.update(record["file"] for record in chosen)
        return "\n".join(_filled(text, figures[r["schema"]](r, notes), f"{pattern}: {r['file']}") for r in chosen)

    page = BLOCK.sub(block, template)
    if rest := PLACE.search(page):
        raise TemplateError(f"{rest[0]} is outside of a block of records, where nothing fills it; move it into one")
    return re.sub(r"\n{3,}", "\n\n", page).rstrip("\n") + "\n"


def _filled(text: str, values: Mapping[str, str], where: str) -> str:
    names = PLACE.findall(text)
    if missing := [name for name in names if name not in values]:
        raise TemplateError(f"block {where} has no figure {missing[0]!r}; it has {', '.join(values)}")
    if unused := [name for name in values if name not in names]:
        raise TemplateError(f"block {where} does not show {unused[0]!r}; write {{{{{unused[0]}}}}} where it belongs")
    return PLACE.sub(lambda match: values[match[1]], text)
