"""A run's eval.json as others read it: whole, or passed over with a warning."""

import json
import sys
from pathlib import Path
from typing import Any


def read_eval(path: Path) -> dict[str, Any] | None:
    """The content of the file; None if there is none. A damaged one is passed over: evaluating again makes it anew."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        facts = json.loads(content)
        problem = _problem(facts)
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if problem is None:
        return facts
    print(f"warning: {path} is damaged ({problem}); it is passed over, 'eblvm eval' makes it again", file=sys.stderr)
    return None


def _problem(facts: Any) -> str | None:
    if not isinstance(facts, dict):
        return f"it is a {type(facts).__name__}, expected a table"
    for part, kinds in (("mean", (int, float, str)), ("deviation", (int, float))):
        table = facts.get(part)
        if not isinstance(table, dict) or not all(isinstance(v, kinds) for v in table.values()):
            return f"its {part!r} is no table of figures"
    if facts["mean"].keys() != facts["deviation"].keys():
        return "its means and deviations are of different figures"
    sections = facts.get("sections")
    if not isinstance(sections, dict) or not all(map(_is_section, sections.values())):
        return "its 'sections' are no table of sections"
    return None


def _is_section(section: Any) -> bool:
    return (
        isinstance(section, dict)
        and isinstance(section.get("settings"), dict)
        and isinstance(section.get("seconds"), (int, float))
        and isinstance(rows := section.get("figures"), list)
        and len(rows) > 0
        and all(isinstance(row, dict) and all(isinstance(v, (int, float, str)) for v in row.values()) for row in rows)
    )
