"""The parts of a GRBM's step: all of them are timed, and with the rest they add up to the step."""

import pytest

from eblvm.bench.suites import grbm_parts


def test_parts_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grbm_parts, "VISIBLE", 7)
    rows = grbm_parts.run(1)["rows"]
    for N in (0, 5, 10):
        mine = {row["part"]: row["ms"] for row in rows if row["N"] == N}
        whole = mine.pop("the step")
        assert sum(mine.values()) == pytest.approx(whole)
        assert ("reverse of N moves" in mine) == (N > 0)
        assert all(ms > 0 for name, ms in mine.items() if name != "the rest")
