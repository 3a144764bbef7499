"""Counts of comparisons with and without a planted slow-down."""

from eblvm.bench.measurements import compare_power


def row(planted: bool, run: int, case: str, failed: bool, interval: list[float]) -> dict[str, object]:
    return {"planted": planted, "run": run, "case": case, "failed": failed, "head_to_base": interval}


ROWS = [
    row(True, 0, "a", True, [1.05, 1.04, 1.06]),
    row(True, 0, "b", False, [1.05, 0.95, 1.15]),
    row(False, 0, "a", False, [1.0, 0.99, 1.01]),
    row(False, 0, "b", False, [1.0, 0.98, 1.02]),
    row(True, 1, "a", False, [1.0, 0.99, 1.02]),
    row(True, 1, "b", False, [1.0, 0.99, 1.02]),
]


def test_a_comparison_has_failed_if_one_of_its_cases_has() -> None:
    planted = compare_power.count(ROWS, planted=True)
    assert planted == {"runs": 2, "failed": 1, "failed_by_case": {"a": 1, "b": 0}}
    assert compare_power.count(ROWS, planted=False)["failed"] == 0


def test_the_table_has_the_widest_interval_of_each_kind() -> None:
    summary = {kind: compare_power.count(ROWS, kind == "planted") for kind in ("planted", "identical")}
    _, rows = compare_power.table({"summary": summary, "rows": ROWS})
    assert [cells[:3] for cells in rows] == [["planted", 2, 1], ["identical", 1, 0]]
    assert [round(cells[3], 6) for cells in rows] == [10, 2]
