"""pytest-benchmark over the registry: `pytest bench` gives its statistics and history for every training step."""

import time
from typing import Any

import pytest
import torch

from eblvm.bench.contestants.steps import CaseStep, NaiveStep, has_naive
from eblvm.bench.tools import registry
from eblvm.bench.tools.registry import Case

CASES = [case for suite in ("grbm", "toy", "gates") for case in registry.cases(suite)]
TWINS = [case for case in CASES if has_naive(case) and "memory" not in case.labels and "D" not in case.labels]

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def measured(benchmark: Any, case: Case, step: Any) -> None:
    torch.set_num_threads(1)
    benchmark.group = case.name
    benchmark.pedantic(step, rounds=5, warmup_rounds=2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_step(benchmark: Any, case: Case) -> None:
    measured(benchmark, case, CaseStep(case))


@pytest.mark.parametrize("case", TWINS, ids=lambda case: case.name)
def test_naive_step(benchmark: Any, case: Case) -> None:
    measured(benchmark, case, NaiveStep(case))
