"""The self-test finds a fault in the gradient of any method: the CPU takes the GPU's place, with and without it.

What the fault is planted in is the first of a check's three trials; the other two, on the host, are run once."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from eblvm.engine.methods import KINDS
from eblvm.engine.selftest import steps, trial
from eblvm.engine.selftest.finding import Finding
from eblvm.engine.selftest.steps import Case, cases
from eblvm.engine.selftest.trial import Trial
from eblvm.kernels.runtime.tiles import Problem, ranked
from tests.engine.selftest.planted import Patches, in_phi, in_theta, planted

CASES = {case.name: case for case in cases()}
TWO = ("ksd", "is-ksd", "vages-ksd", "nce", "vnce")  # samples at least
NEGATED, FIVE_PERCENT = -1.0, 1.05


@pytest.fixture
def finding(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finding]:
    """A check of a case, with a fault in what takes the GPU's place."""
    known: dict[Any, Trial] = {}

    def check(case: Case, patches: Patches = in_theta, factor: float = 1.0) -> Finding:
        made: list[Trial] = []

        class Planted(Trial):
            def run(self, number: int = 1) -> Trial:  # type: ignore[override]
                with planted(patches, factor):
                    return super().run(number)

        def made_by_turns(config: Any, shape: tuple[int, ...], device: str) -> Trial:
            if not made:
                with planted(patches, factor):
                    made.append(Planted(config, shape, device))
                return made[0]
            if config not in known:
                known[config] = Trial(config, shape, device).run()
            return Ran(known[config])

        monkeypatch.setattr(trial, "Trial", made_by_turns)
        return Finding(case.name, *steps.compared(case, "cpu"))

    return check


class Ran(Trial):
    """A trial that has been run."""

    def __init__(self, done: Trial):
        self.__dict__.update(done.__dict__)

    def run(self, number: int = 1) -> Trial:  # type: ignore[override]
        return self


def faults(case: Case) -> Iterator[tuple[Patches, float]]:
    """Yield the faults to plant in a case: in 16 bits rounding is as large as 5 %, and in tf32 it may be."""
    method = case.config.method
    levels = (in_theta, in_phi) if method.generates or (method.learns_q and case.config.get("K")) else (in_theta,)
    for level in levels:
        yield level, NEGATED
        if case.config.model.precision == "fp32":
            yield level, FIVE_PERCENT


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_gradient_is_found(name: str, finding: Callable[..., Finding]) -> None:
    case = CASES[name]
    right = finding(case)
    assert right.passed, right
    assert right.bound is not None
    if case.config.model.precision == "fp32":
        assert right.bound < 1e-2
    for level, factor in faults(case):
        assert not finding(case, level, factor).passed, (level.__name__, factor)


def test_every_method_has_its_cases() -> None:
    """Every method on a GRBM, at 20 and as few samples as can be and over replicas; all of a deep net on it; BiDVL."""
    every = set(KINDS) - {"bidvl"}
    assert {f"grbm {kind} {how}" for kind in every for how in ("B=20", "replicas")} <= set(CASES)
    assert {f"grbm {kind} B={1 + (kind in TWO)}" for kind in every} <= set(CASES)
    only_of_a_grbm = {kind for kind, method in KINDS.items() if method.needs_conditionals}
    assert {name.split()[1] for name in CASES if name.startswith("deep")} == every - only_of_a_grbm
    kinds = {f"{method} {kind}" for method in ("mdsm", "bimdsm") for kind in ("tf32", "bf16", "fp16")}
    kinds |= {f"bimdsm {how}" for how in ("B=1", "B=25", "replicas", "micro-batch")}
    assert {f"deep {kind}" for kind in kinds | {"vages-mdsm tf32", "vages-mdsm bf16"}} <= set(CASES)
    assert {"bidvl", "bidvl N=1", "bidvl sn-resnet"} <= set(CASES)


@pytest.mark.parametrize("size", steps.SPLIT)
def test_the_tuner_splits_at_these_sizes(size: tuple[int, int, int]) -> None:
    assert ranked(Problem("rows", *size, 1, 4, 4, "ieee"))[0].split > 1
