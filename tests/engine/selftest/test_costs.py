"""Memory, time and use of the peak, with a stand-in for the device's name and for the clock."""

from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from eblvm.engine.config import Config
from eblvm.engine.planning.plan import RESERVED, step_cost
from eblvm.engine.recipes import recipe
from eblvm.engine.selftest import costs
from eblvm.engine.selftest.finding import run
from eblvm.engine.selftest.peaks import PEAKS, peak_of

GRBM, FACE = recipe("freyface", method="dsm").replaced(latent=40, batch=20), (56,)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A device of this name, whose clock goes on by a second per look."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    looks = count()
    monkeypatch.setattr(costs, "time", SimpleNamespace(perf_counter=lambda: float(next(looks))))
    return lambda name: monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)


def cost(flops: float, precision: str) -> Any:
    optimisation = SimpleNamespace(batch=50)
    config = SimpleNamespace(model=SimpleNamespace(precision=precision), optimisation=optimisation)
    return SimpleNamespace(flops=flops, config=config)


def test_the_use_of_a_peak_is_flops_over_time_over_the_sheets_rate(on_device: Callable[[str], None]) -> None:
    """39 GFLOP in a millisecond are 39 TFLOP/s: a quarter of an A100's 156 in tf32, twice its 19.5 in fp32."""
    on_device("NVIDIA A100-SXM4-80GB")
    assert costs.fraction_of_peak(lambda: (1e-3, cost(39e9, "tf32")), "cuda").figure == pytest.approx(0.25)
    assert costs.fraction_of_peak(lambda: (1e-3, cost(39e9, "fp32")), "cuda").figure == pytest.approx(2.0)
    measured = costs.fraction_of_peak(lambda: (1e-3, cost(39e9, "bf16")), "cuda")
    assert measured.figure == pytest.approx(0.125)
    assert measured.bound is None
    assert measured.unit == "MFU in bf16, of 312 TFLOP/s (NVIDIA A100 data sheet)"


def test_an_unknown_peak_is_said(on_device: Callable[[str], None]) -> None:
    on_device("NVIDIA B1000")
    measured = costs.fraction_of_peak(lambda: (1e-3, cost(39e9, "bf16")), "cuda")
    assert measured.figure == pytest.approx(39)
    assert measured.unit == "TFLOP/s in bf16; peak unknown of NVIDIA B1000"


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100-.*"),
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-.*"),
    ],
)
def test_a_name_is_that_of_one_row(name: str, row: str) -> None:
    found = peak_of(name, "fp32")
    assert found is not None
    assert found == (PEAKS[row].fp32, PEAKS[row].source)


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 4090 D", "NVIDIA A10G", "NVIDIA H100 NVL", "Tesla V100-PCIE-16GB"]
)
def test_a_board_that_differs_has_no_peak(name: str) -> None:
    assert peak_of(name, "fp32") is None


def test_a_device_without_a_precision_has_no_peak_in_it() -> None:
    assert peak_of("Tesla T4", "tf32") is None


def test_every_peak_is_plausible_and_has_a_source() -> None:
    for peaks in PEAKS.values():
        assert peaks.source
        assert peaks.fp32 <= (peaks.tf32 or peaks.fp32)
        assert 1.9 * (peaks.tf32 or peaks.fp32) < (peaks.half or 0) < 10 * peaks.fp32 * 2


def test_a_step_is_timed_after_warming_up(on_device: Callable[[str], None]) -> None:
    on_device("none")
    seconds, found = costs.step_seconds(GRBM, FACE, "cpu")
    assert seconds == pytest.approx(1 / costs.TIMED)
    assert costs.milliseconds(lambda: (seconds, found)) == (pytest.approx(1e3 / costs.TIMED), None, "ms, batch 20")


def test_a_batch_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the published CIFAR-10 step, on a small GPU."""
    config = recipe("cifar10").replaced(width=16, depth=12)
    half = step_cost(config.replaced(batch=50), (3, 32, 32)).total_bytes
    monkeypatch.setattr(costs, "device_memory", lambda device: half + RESERVED)
    assert costs.fitting(config, (3, 32, 32), "cuda").config.optimisation.batch == 50


def test_memory_beyond_the_plans_reserve_fails(
    on_device: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_device("none")
    planned = step_cost(GRBM, FACE).total_bytes
    for beyond, bound_kept in ((RESERVED - 1, True), (RESERVED + 2**20, False)):
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device, beyond=beyond: planned + beyond)
        measured = costs.beyond_the_plan(GRBM, FACE, "cpu")
        assert measured.bound is not None
        assert (measured.figure <= measured.bound) == bound_kept


def test_every_time_has_its_use_of_the_peak(on_device: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """One timing serves both lines."""
    on_device("NVIDIA A100-SXM4-80GB")
    timed: list[Config] = []

    def seconds(config: Config, shape: tuple[int, ...], device: str) -> Any:
        timed.append(config)
        return 1e-3, cost(39e9, config.model.precision)

    monkeypatch.setattr(costs, "step_seconds", seconds)
    checks: Iterator[Any] = costs.costs("cuda")
    next(checks)  # memory
    found = list(run(checks))
    assert all(f.passed for f in found)
    times, uses = found[::2], found[1::2]
    assert [f.check.split(", ")[1] for f in times] == [f.check.split(", ")[1] for f in uses]
    assert len(timed) == len(times) == 6
    assert all("MFU" in f.unit for f in uses)
