"""The BiDVL suite on small nets: agreement of whole steps, what is refused, and the record."""

import pytest

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.measurements import bidvl
from eblvm.bench.naive.bidvl import Bidvl
from eblvm.bench.tools.agreement import TOLERANCE, AgreementError
from eblvm.engine.planning.footprint import footprint
from eblvm.engine.recipes import recipe

SMALL = recipe("cifar10", method="bidvl").replaced(width=4, posterior_width=4, generator_width=4, latent=5)


def test_engine_and_naive_steps_agree() -> None:
    assert bidvl.difference() <= TOLERANCE


def test_a_wrong_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bidvl, "upper_step", lambda self, v, h: None)
    with pytest.raises(AgreementError, match="no speed is reported"):
        bidvl.difference()


def test_memory_is_no_higher_than_the_naive_steps() -> None:
    config = bidvl.cases()[-2].config.replaced(batch=4)
    engine, naive = EngineStep(config, bidvl.SHAPE), bidvl.NaiveStep(config, bidvl.SHAPE)
    for step in (engine, naive):
        step()
    own, other = footprint(engine, engine.inputs), footprint(naive, naive.inputs)
    assert own.saved_bytes <= other.saved_bytes
    assert own.peak_bytes <= other.peak_bytes
    assert own.flops * 1.08 < other.flops


def test_record_of_small_nets() -> None:
    result = bidvl.run(1, progress=False, chosen=bidvl.cases(SMALL), shape=(3, 16, 16))
    assert [set(row) for row in result["rows"]] == [set(bidvl.COLUMNS)] * 3
    first = result["rows"][0]
    assert first["ratio"] > 0
    assert sum(result["profile"].values()) == pytest.approx(1)
    assert "convolutions, backward" in bidvl.format_table(result)
