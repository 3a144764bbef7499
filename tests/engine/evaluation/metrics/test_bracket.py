"""When log Z is known: bounds in order, chains that mixed; and bounds by single modes against enumeration."""

import math

import pytest
import torch

from eblvm.engine.evaluation import figures
from eblvm.engine.evaluation.metrics.bracket import bracket, mode_bound
from eblvm.engine.evaluation.metrics.likelihood import LogZ, ais, exact_log_z
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.sampling.mixing import Mixing
from eblvm.kernels.philox import Key

AGREED = Mixing(1.001, 900.0, 1000, {"data": -5.0}, {})


def test_bounds_in_order_are_a_bracket() -> None:
    found = bracket(LogZ(10.0, 0.1, 50), 8.0, LogZ(10.4, 0.1, 50), AGREED)
    assert (found.lower.value, found.upper.value, found.reason) == (10.0, 10.4, None)
    crossed = bracket(LogZ(10.0, 0.1, 50), 8.0, LogZ(9.8, 0.1, 50), AGREED)  # within the errors
    assert crossed.reason is None


@pytest.mark.parametrize(("error", "back"), [(0.9, 3.0), (0.01, 9.5)])
def test_bounds_in_the_wrong_order_are_not_known(error: float, back: float) -> None:
    found = bracket(LogZ(10.0, error, 50), 8.0, LogZ(back, error, 50), AGREED)
    assert found.upper is None
    assert f"reverse AIS gives {back:g}, which is no upper bound" in found.reason


def test_chains_that_have_not_mixed_give_no_upper_bound() -> None:
    apart = Mixing(1.7, 20.0, 1000, {"data": -195.0, "annealing": -7482.0}, {})
    found = bracket(LogZ(7946.0, 0.8, 2), 7900.0, LogZ(7950.0, 0.8, 2), apart)
    assert found.lower.value == 7946.0
    assert "R-hat 1.7" in found.reason
    assert "-195 from data, -7482 from annealing" in found.reason


def test_nothing_finite_is_not_known() -> None:
    assert "AIS gave nan" in bracket(LogZ(math.nan, 0.1), math.nan, None, AGREED).reason
    assert "no finite value" in bracket(LogZ(1.0, 0.1), 0.0, LogZ(math.inf, 0.1), AGREED).reason


def test_the_bound_of_a_mode_is_one_and_the_larger_counts() -> None:
    energy = GRBM(5, 8)
    theta = {k: 2 * p.double() for k, p in energy.initial(Key(3, 0)).items()}
    exact = exact_log_z(energy, theta).value
    v = torch.linspace(-2, 2, 50, dtype=torch.float64).view(10, 5)
    found = mode_bound(theta, v)
    assert exact - 1 < found < exact
    # As loose as can be: one temperature, two chains; the mode says more.
    forth = ais(energy, theta, Key(1, 0), 2, 1)
    assert bracket(forth, found, LogZ(exact, 0.1), AGREED).lower.value == max(found, forth.value)


def test_the_bound_of_a_single_state() -> None:
    """Modes so deep that one state of h holds everything: the bound is exact."""
    energy = GRBM(2, 3)
    theta = {
        "W": torch.full((2, 3), 5.0, dtype=torch.float64),
        "b": torch.zeros(2, dtype=torch.float64),
        "c": torch.full((3,), 40.0, dtype=torch.float64),
        "log_sigma": torch.tensor([0.3, -0.2], dtype=torch.float64),
    }
    assert mode_bound(theta, torch.zeros(1, 2, dtype=torch.float64)) == pytest.approx(exact_log_z(energy, theta).value)


def test_a_mean_over_replicas_is_not_known_where_one_is_not() -> None:
    assert figures.mean([1.0, 3.0]) == 2.0
    assert figures.mean([1.0, "not known: no"]) == "not known: 1 of 2 replicas: no"
    assert figures.mean(["not known: no"]) == "not known: no"
    assert figures.deviation([1.0, "not known: no"]) == 0.0
    assert figures.checked({"a": math.nan, "b": 1.0}) == {"a": "not known: it came out as nan", "b": 1.0}
