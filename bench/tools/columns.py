"""Tables of records: some figures of each row, in order."""

from collections.abc import Mapping, Sequence
from typing import Any

Table = tuple[list[str], list[list[Any]]]


def table(columns: Mapping[str, str] | Sequence[str], result: dict[str, Any]) -> Table:
    """Header and rows: the figures `columns` of each row of a record, under their titles if it maps names to titles."""
    header = list(columns.values()) if isinstance(columns, Mapping) else list(columns)
    return header, [[row.get(name) for name in columns] for row in result["rows"]]
