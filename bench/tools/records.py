"""The records in bench/records: a JSON-lines file per name, a record per line, the newest last.

Pages show the newest of each kind; the lines before it are what `eblvm bench history` draws. Nothing here imports
torch. The `.json` files next to them are tables without a history, each written anew as a whole by one command and
compared as a whole by one test: gates.json, launches.json, kills.json, fuzz.json, fuzz-crashes.json and
reproduce-costs.json. As lines of a history they would only grow; git has their past.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eblvm.engine.errors import UserError

Record = dict[str, Any]

SOURCE = Path(__file__).resolve().parents[2]  # the repository of an editable install
RECORDS = Path(__file__).resolve().parents[1] / "records"


def kind(record: Record) -> tuple[Any, ...]:
    """Of two records with the same kind pages show the newer one."""
    return record["schema"], record["name"], record.get("compiled", False), "gpu" in record.get("machine", {})


def files(folder: Path, pattern: str = "*") -> list[Path]:
    """The JSON-lines files of a folder whose stem matches, by name."""
    return sorted(folder.glob(f"{pattern}.jsonl"), key=lambda path: path.stem)


def history(path: Path) -> list[Record]:
    """All records of a file, the oldest first; each with its `file`."""
    return [record | {"file": path.name} for record in _lines(path)]


def _lines(path: Path) -> Iterator[Record]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        record = _parsed(line, f"line {number} of record {path}")
        if not isinstance(record, dict):
            raise UserError(f"line {number} of record {path} is {type(record).__name__}, expected an object; remove it")
        yield record


def newest(folder: Path, pattern: str, *schemas: str) -> list[Record]:
    """The newest record of each kind, from the files of a folder whose stem matches; each of one of these schemas."""
    shown: list[Record] = []
    for path in files(folder, pattern):
        records = history(path)
        if not records:
            continue
        _check_schema(records[-1], schemas, path)
        by_kind = {kind(record): record for record in records if record.get("schema") == records[-1]["schema"]}
        shown += by_kind.values()
    return shown


def read(path: Path, schema: str) -> Record:
    """The record in a `.json` file, or the newest one in a `.jsonl` file."""
    if path.suffix == ".jsonl":
        record = next(reversed(list(_lines(path))), None)
    else:
        record = _parsed(_text(path), f"record {path}")
    _check_schema(record, (schema,), path)
    assert record is not None
    return record


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise UserError(
            f"record {path} cannot be read ({error.strerror}); give the path of an existing record"
        ) from None


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{what} is not valid JSON ({error}); make it again") from None


def _check_schema(record: Any, schemas: tuple[str, ...], path: Path) -> None:
    got = record.get("schema", "none") if isinstance(record, dict) else "none"
    if got not in schemas:
        wanted = " or ".join(map(repr, schemas))
        raise UserError(f"record {path} has schema {got!r}, expected {wanted}; another version wrote it: make it again")
