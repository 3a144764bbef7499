"""The VaGES suite on small models: agreement with the per-sample formula, and the record's columns."""

import pytest

from eblvm.bench.measurements import deep, vages
from eblvm.bench.tools import agreement
from eblvm.bench.tools.agreement import TOLERANCE, AgreementError
from eblvm.engine.recipes import recipe

IMAGES = recipe("cifar10").replaced(width=4, depth=12, latent=5, head_width=8, posterior_width=2, batch=7)
FLAT = recipe("freyface", method="vages-dsm").replaced(latent=5, batch=8)


@pytest.mark.parametrize("L", [2, 5])
def test_engine_and_naive_gradients_agree(L: int) -> None:
    assert deep.difference(deep.SMALL.replaced(method="vages-mdsm", L=L, K=2, C=2)) <= TOLERANCE
    for case in vages.grbm_cases(FLAT.replaced(L=L), 9):
        assert agreement.check(case) <= TOLERANCE


def test_a_wrong_formula_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep.VagesMdsm, "samples", lambda self, x, noise, chains: noise)
    with pytest.raises(AgreementError, match="no speed is reported"):
        deep.difference(deep.SMALL.replaced(method="vages-mdsm", K=1, C=1))


def test_record_of_small_models() -> None:
    result = vages.run(1, False, vages.deep_cases(IMAGES), vages.grbm_cases(FLAT, 9))
    assert [set(row) for row in result["rows"]] == [set(vages.COLUMNS)] * 9
    by_case = {row["case"]: row for row in result["rows"]}
    assert by_case["method=vages-mdsm L=2 K=5 C=5"]["ratio"] > 0
    assert sum(row["naive_ms"] is not None for row in result["rows"]) == 3
    assert all(row["peak_mib"] > 0 for row in result["rows"][3:])
    assert "L=10" in vages.format_table(result)
