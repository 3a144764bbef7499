"""The parts of a GRBM's step: all of them are timed, and with the rest they add up to the step."""

import pytest

from eblvm.bench.measurements import grbm_parts


def test_parts_add_up_to_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grbm_parts, "VISIBLE", 7)
    rows = grbm_parts.run(1)["rows"]
    steps = dict.fromkeys(row["step"] for row in rows)
    assert list(steps) == [
        *(f"Frey face, N={N}" for N in (0, 5, 10)),
        *(f"checkerboard, replicas: {count}" for count in (1, 10)),
    ]
    for step in steps:
        mine = {row["part"]: row["of_the_step"] for row in rows if row["step"] == step}
        assert mine.pop("the step") == 1
        assert sum(mine.values()) == pytest.approx(1)
        assert ("reverse of N moves" in mine) == (step in ("Frey face, N=5", "Frey face, N=10"))
        assert all(part > 0 for name, part in mine.items() if name != "the rest")
