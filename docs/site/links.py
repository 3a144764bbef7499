"""A hook of mkdocs: links from the pages to files of the repository, which work on GitHub, lead there from the site."""

import re
from typing import Any

BRANCH = "blob/main"


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    base = f"{config.repo_url.rstrip('/')}/{BRANCH}"
    return re.sub(r"\]\(\.\./([^)]+)\)", rf"]({base}/\1)", markdown)
