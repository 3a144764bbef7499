"""The bars of the CPU steps: every target is measured twice, and judged by the worse reading."""

import pytest
import torch

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.measurements import grbm_parts, targets
from eblvm.bench.tools.registry import Case
from eblvm.engine.recipes import recipe

SMALL = recipe("cifar10").replaced(width=2, depth=12, latent=3, head_width=5, posterior_width=2, batch=2)


def test_targets_are_judged_by_the_worse_of_two_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grbm_parts, "VISIBLE", 7)
    result = targets.run(1, SMALL, targets.rows_of)
    assert len(result["rows"]) == 7
    for row in result["rows"]:
        assert row["ratio"] > 0
        assert row["met"] == (max(row["ratio"], row["again"]) <= row["bar"])
    assert result["samples_add_ms"] < max(row["ms"] for row in result["rows"])
    header, rows = targets.table(result)
    assert [row[0] for row in rows] == [row["target"] for row in result["rows"]]
    assert len(header) == len(rows[0])


def test_a_group_is_measured_in_a_process_of_its_own() -> None:
    (row,) = targets.in_a_process(3, 1, None)
    assert row["target"] == "checkerboard: ten replicas over one"
    assert row["ratio"] > 0


def test_the_floor_of_mdsm_is_its_convolutions() -> None:
    """Of every layer two passes forward, two to the input and two to the weight; the first one has one less to v."""
    step = CaseStep(Case(SMALL.replaced(method="mdsm"), (3, 32, 32)))
    floor = targets.ConvolutionFloor(step)
    layers = sum(p.dim() == 4 for p in step.state.theta.params.values())
    calls = [(function._overloadpacket, arguments) for function, arguments, _ in floor.calls]
    masks = [arguments[-1] for op, arguments in calls if op is torch.ops.aten.convolution_backward]
    assert sum(op is torch.ops.aten.convolution for op, _ in calls) == 2 * layers
    assert sum(to_weight for _, to_weight, _ in masks) == 2 * layers
    assert sum(to_input for to_input, _, _ in masks) == 2 * layers - 1
    floor()
