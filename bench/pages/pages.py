"""The pages of docs/ that are made from docs/templates/ and bench/records/, and whether they are what these give."""

from collections.abc import Iterator
from pathlib import Path

from eblvm.bench.pages import contest, newton, performance, results, scale
from eblvm.bench.pages.templates import fill
from eblvm.bench.tools.records import RECORDS, SOURCE, Record
from eblvm.engine.plotting import facts_digest

DOCS = SOURCE / "docs"
TEMPLATES = DOCS / "templates"
FIGURES = {
    "performance": performance.FIGURES,
    "results": results.FIGURES,
    "contest": contest.FIGURES,
    "scale": scale.FIGURES,
    "newton": newton.FIGURES,
}


def render(name: str, folder: Path = RECORDS) -> str:
    """The page with the newest records of a folder."""
    return fill((TEMPLATES / f"{name}.md").read_text(), folder, FIGURES[name])


def write() -> Iterator[str]:
    """Fill in every page, and draw the pictures that are older than their records; the names of what is written."""
    for name in FIGURES:
        path = DOCS / f"{name}.md"
        path.write_text(render(name))
        yield path.name
    for picture, record in performance.pictures(RECORDS).items():
        if not shows(DOCS / picture, record):
            performance.draw(record, DOCS / picture)
            yield picture


def stale(docs: Path = DOCS, folder: Path = RECORDS) -> list[str]:
    """A sentence for each page and picture that is not what template and records give."""
    told = []
    for name in FIGURES:
        page = docs / f"{name}.md"
        if not page.exists() or page.read_text() != render(name, folder):
            told.append(f"docs/{page.name} is older than its template or records; run 'eblvm bench pages'")
    for picture, record in performance.pictures(folder).items():
        if not shows(docs / picture, record):
            told.append(f"docs/{picture} is older than {record['file']}; run 'eblvm bench pages'")
    for picture, record in scale.pictures(folder).items():
        if not shows(docs / picture, record):
            told.append(f"docs/{picture} is older than {record['file']}; draw it with 'eblvm plan --plot'")
    return told


def shows(path: Path, record: Record) -> bool:
    """Was this picture drawn from this record?"""
    from PIL import Image

    if not path.exists():
        return False
    with Image.open(path) as picture:
        return picture.info.get("Description") == facts_digest(record["rows"])
