"""Growth of figures: the fit, and a record of small axes."""

from pathlib import Path

import numpy as np
import pytest

from eblvm.bench.measurements import growth
from eblvm.bench.measurements.growth import above
from eblvm.bench.measurements.growth_axes import FLOPS, HELD, TIME, Axis, grbm
from eblvm.bench.measurements.growth_plot import plot
from eblvm.bench.tools.fit import exponent, fitted

XS = (1, 2, 4, 8)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_the_power_beside_what_does_not_grow(power: float, offset: float) -> None:
    assert exponent(XS, [offset + 0.7 * x**power for x in XS]) == pytest.approx(power, abs=0.01)


def test_what_hardly_moves_does_not_grow() -> None:
    assert exponent(XS, [100, 101, 103, 104]) == 0


def test_without_an_offset_the_power_is_the_slope() -> None:
    ys = [5 + x for x in XS]
    assert exponent(XS, ys) == 1
    assert exponent(XS, ys, offset=False) == pytest.approx(np.polyfit(np.log(XS), np.log(ys), 1)[0], abs=0.03)


def test_what_slows_a_round_does_not_bend_the_fit() -> None:
    """Every round has a speed of its own, and its readings a percent of noise."""
    random = np.random.default_rng(1)
    speed, noise = random.uniform(1, 3, size=15), random.normal(1, 0.01, size=(len(XS), 15))
    readings = np.array([[2 + 0.7 * x] for x in XS]) * speed * noise
    fit = fitted(XS, readings.tolist())
    assert fit["low"] <= fit["p"] <= fit["high"]
    assert fit["p"] == pytest.approx(1, abs=0.1)
    assert fit["high"] - fit["low"] < 0.3


def test_a_record_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "large", list)
    monkeypatch.setattr(growth, "threads", lambda rounds: [])
    monkeypatch.setattr(growth.steps_of_a_run, "__defaults__", ((2, 4, 8), 1))
    small = {"latent": 8, "batch": 10, "N": 2, "K": 2}
    axes = [
        Axis("B", "batch", (10, 20, 40), lambda x: grbm(12, **(small | {"batch": x})), {FLOPS: 1}),
        Axis("N", "unrolled", (5, 10, 20), lambda x: grbm(12, **(small | {"N": x})), {FLOPS: 0.5, HELD: 1}),
    ]
    made = growth.run(1, progress=False, axes=axes)
    fits = {(fit["axis"], fit["figure"]): fit["p"] for fit in made["fits"]}
    assert fits["B", FLOPS] == fits["N", FLOPS] == fits["N", HELD] == 1
    assert all(fit["low"] <= fit["high"] for fit in made["fits"] if fit["figure"] == TIME)
    assert "N: FLOPs grows with power 1.00, theory says 0.5" in above(made)
    assert "1.00 / 0.5" in growth.format_table(made)
    plot(made, tmp_path / "growth.png")
    assert (tmp_path / "growth.png").stat().st_size > 5000


def test_memory_at_more_pixels_grows_with_them() -> None:
    """Activations by the area; the state does not."""
    a, b = growth.large({"small": 32, "large": 64}, ("blocks",))
    assert b["total_gib"] - b["state_gib"] == pytest.approx(4 * (a["total_gib"] - a["state_gib"]), rel=0.15)
