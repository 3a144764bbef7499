"""The table of the emulated kernels; `python -m tests.emulator --update` makes its record."""

from eblvm.bench.tools import columns
from eblvm.bench.tools.columns import Table
from eblvm.bench.tools.records import Record

SCHEMA = "eblvm-emulator-1"
COLUMNS = {
    "case": "case",
    "kernel": "kernel",
    "error": "error",
    "problems": "problems",
    "sectors": "sectors",
    "programs": "programs",
    "registers": "registers",
    "instructions": "instructions",
}


def table(record: Record) -> Table:
    rows = [row | {"error": f"{row['error']:.0e}"} for row in record["rows"]]
    return columns.table(COLUMNS, {"rows": rows})
