"""A hook of mkdocs: links from pages to files of the repository, which work in a clone, work in the site too.

Every file that a page links to outside of docs/ becomes a page under source/, by its path; Markdown as it is, anything
else as code. The site needs no other server.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".cpp": "cpp", ".h": "cpp", ".toml": "toml", ".json": "json", ".yml": "yaml"}
SEARCH_NOTHING = "---\nsearch:\n  exclude: true\n---\n"


def origin(page: str) -> str:
    """The path in the repository of a page of the site."""
    return page.removeprefix("source/") if page.startswith("source/") else f"docs/{page}"


def place(path: str) -> str:
    """The page of the site for a file of the repository; nothing where it has none."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        path = f"{path.rstrip('/')}/README.md"
    if path.startswith("..") or not (ROOT / path).is_file():
        return ""
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def linked(page: str, text: str) -> Iterator[str]:
    """The files of the repository that a page's text links to."""
    for target, _ in LINK.findall(text):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(origin(page)), target))


def on_files(files: Files, config: Any) -> Files:
    todo = [(f.src_uri, f.content_string) for f in files.documentation_pages()]
    while todo:
        page, text = todo.pop()
        for path in linked(page, text):
            new = place(path)
            if not new.startswith("source/") or new in files.src_uris:
                continue
            source = (ROOT / origin(new if path.endswith(".md") else new.removesuffix(".md"))).read_text()
            if not path.endswith(".md"):
                fence = f"````{LANGUAGES.get(Path(path).suffix, 'text')}"
                source = f"# {path}\n\n{fence}\n{source.rstrip()}\n````\n"
            files.append(File.generated(config, new, content=SEARCH_NOTHING + source))
            if path.endswith(".md"):
                todo.append((new, source))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = posixpath.dirname(page.file.src_uri) or "."

    def lead(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin(page.file.src_uri)), match[1]))
        new = place(path)
        return posixpath.relpath(new, here) + (match[2] or "") if new else "#"

    return LINK.sub(lead, markdown) if page.file.src_uri != "reference.md" else markdown
