"""The deep suite on a small model: agreement, the bytes that graphs keep, and the record's columns."""

import pytest

from eblvm.bench.measurements import deep
from eblvm.bench.tools.agreement import TOLERANCE, AgreementError
from eblvm.engine.recipes import recipe

SMALL = recipe("cifar10").replaced(width=4, depth=12, latent=5, head_width=8, posterior_width=2, batch=7)


def test_engine_and_naive_gradients_agree() -> None:
    assert deep.check() <= TOLERANCE


def test_a_wrong_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    unrolled = deep.BiMdsm.unrolled_steps

    def shorter(self: deep.BiMdsm, *arguments: object) -> object:
        self.N -= 1
        return unrolled(self, *arguments)

    monkeypatch.setattr(deep.BiMdsm, "unrolled_steps", shorter)
    with pytest.raises(AgreementError, match="no speed is reported"):
        deep.difference(SMALL.replaced(batch=4, dtype="float64", noise="fresh", N=1, K=1))


@pytest.mark.long
def test_record_of_a_small_model() -> None:
    result = deep.run(1, progress=False, chosen=deep.cases(SMALL))
    assert [set(row) for row in result["rows"]] == [set(deep.COLUMNS)] * 13
    by_case = {row["case"]: row for row in result["rows"]}
    assert by_case["method=bimdsm N=5 K=5"]["naive_ms"] > 0
    plain, cut = by_case["method=bimdsm N=0 K=5"], by_case["method=bimdsm N=0 K=5 checkpoint=all"]
    assert cut["held_mib"] * 3 < plain["held_mib"]
    # Convolutions' own copies are counted in both, as the allocator sees them (tests/engine/test_plan.py).
    assert cut["peak_published_mib"] * 1.8 < plain["peak_published_mib"]
    newton = by_case["method=bimdsm best_response=newton K=5"]
    assert newton["held_mib"] <= plain["held_mib"]
    assert newton["peak_published_mib"] <= plain["peak_published_mib"]
    assert by_case["network=published method=bimdsm N=0 K=5 noise=fresh"]["naive_ms"] > 0
    assert "checkpoint=blocks" in deep.format_table(result)


def test_held_bytes_on_the_meta_device_are_those_of_real_tensors() -> None:
    engine = deep.DeepStep(SMALL.replaced(N=2, unroll_memory="recompute"))
    assert engine.held_bytes(batch=7) == engine.held_bytes()


def test_what_is_held_hardly_grows_with_unrolled_steps() -> None:
    """The one-pass promise: of the network's activations there is one copy for any N."""
    none, many = (
        deep.DeepStep(SMALL.replaced(N=N, unroll_memory="recompute")).held_bytes(deep.PUBLISHED_BATCH) for N in (0, 10)
    )
    assert many < 1.1 * none
