"""Figures as aligned text and as Markdown."""

from collections.abc import Sequence
from typing import Any

Row = Sequence[Any]


def cell(value: Any) -> str:
    """Format a float with three significant digits, and a figure that was not measured as '-'."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def text(header: Row, rows: Sequence[Row]) -> str:
    lines = [[str(name) for name in header], *([cell(value) for value in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    aligned = (
        [first.ljust(widths[0]), *(value.rjust(width) for value, width in zip(others, widths[1:], strict=True))]
        for first, *others in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def markdown(header: Row, rows: Sequence[Row]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [list(header), rule, *([cell(value) for value in row] for row in rows)]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines)
