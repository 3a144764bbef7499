"""`eblvm bench compare-power`: how often `eblvm bench compare` reports a slow-down that is planted, or none.

A clone of the repository is compared with itself, by turns as it is and with a busy loop that makes every step
longer. The loop is in the clone's benchmark code; the engine is not touched.
"""

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from eblvm.bench.tools import compare, record, records
from eblvm.bench.tools.columns import Table

SCHEMA = "eblvm-compare-power/1"
PLANT = """

_plain_call = EngineStep.__call__


def _slower_call(self: EngineStep) -> None:
    import time

    begin = time.process_time()
    _plain_call(self)
    end = time.process_time()
    until = end + {slow_down} * (end - begin)
    while time.process_time() < until:
        pass


EngineStep.__call__ = _slower_call  # type: ignore[method-assign]
"""


def run(comparisons: int, minutes: float, total: float, slow_down: float, only: str) -> dict[str, Any]:
    """`comparisons` of each kind, fewer if `total` minutes are over before."""
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + 60 * total
    with tempfile.TemporaryDirectory(prefix="eblvm-power-") as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", "--local", str(records.SOURCE), str(clone)], check=True)
        steps = clone / "bench" / "contestants" / "steps.py"
        plain = steps.read_text()
        for _ in range(comparisons):
            for planted in (True, False):
                if time.monotonic() > end:
                    continue
                steps.write_text(plain + PLANT.format(slow_down=slow_down) if planted else plain)
                begin = time.monotonic()
                measured, failures = compare.run("HEAD", clone, budget=compare.Budget(minutes), only=only)
                rows += [
                    {
                        "planted": planted,
                        "run": len(rows) // len(measured) // 2,
                        "case": name,
                        "head_to_base": list(m.interval),
                        "confirmed": m.confirmed and list(m.confirmed),
                        "failed": any(failure.startswith(name) for failure in failures),
                        "rounds": sum(map(len, m.ratios)),
                        "launches": len(m.ratios),
                        "seconds": time.monotonic() - begin,
                    }
                    for name, m in measured.items()
                ]
                print(format_row(rows[-len(measured) :]), flush=True)
    counts = {kind: count(rows, kind == "planted") for kind in ("planted", "identical")}
    body = {"share": slow_down, "minutes": minutes, "summary": counts, "rows": rows}
    command = f"eblvm bench compare-power --comparisons {comparisons} --minutes {minutes:g} --only '{only}'"
    return record.make(SCHEMA, "compare-power", command, "cpu", body)


def count(rows: list[dict[str, Any]], planted: bool) -> dict[str, Any]:
    """The number of comparisons, of those that failed, and of failures by case."""
    mine = [row for row in rows if row["planted"] == planted]
    failed = {row["run"] for row in mine if row["failed"]}
    cases = {row["case"]: sum(r["failed"] for r in mine if r["case"] == row["case"]) for row in mine}
    return {"runs": len({row["run"] for row in mine}), "failed": len(failed), "failed_by_case": cases}


def table(result: dict[str, Any]) -> Table:
    """Comparisons by kind, how many failed, and the widest interval of a first block, in percent."""
    rows = []
    for kind, counted in result["summary"].items():
        intervals = [row["head_to_base"] for row in result["rows"] if row["planted"] == (kind == "planted")]
        widest = max((100 * (high - low) / 2 for _, low, high in intervals), default=None)
        rows.append([kind, counted["runs"], counted["failed"], widest])
    return ["head is", "comparisons", "failed", "widest interval, +- %"], rows


def format_row(rows: list[dict[str, Any]]) -> str:
    kind = "planted" if rows[0]["planted"] else "identical"
    parts = [f"{r['case'][:24]} {r['head_to_base']} again {r['confirmed']} failed={r['failed']}" for r in rows]
    return f"{kind}: " + "; ".join(parts)
