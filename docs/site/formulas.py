"""A hook of mkdocs: formulas as MathML, which every current browser draws with no script and no font of its own.

Pages write $...$ and fences of `math`, as GitHub reads them; `pymdownx.arithmatex` finds both.
"""

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
FUNCTION = re.compile(r"(<mi>(?:log|exp|tr)</mi>)(?=<m[a-z]+>[^(])")  # before its argument
SPACE = r'\1<mspace width="0.167em" />'


def mathml(formula: str, display: str = "inline") -> str:
    found = convert(unescape(formula), display=display)
    if "\\" in found:
        raise PluginError(f"a formula has a command that is not known: {formula}")
    return FUNCTION.sub(SPACE, found)


def on_page_content(html: str, **_: Any) -> str:
    html = INLINE.sub(lambda m: mathml(m[1]), html)
    return BLOCK.sub(lambda m: f'<div class="formula">{mathml(m[1], "block")}</div>', html)
