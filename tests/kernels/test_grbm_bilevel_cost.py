"""Costs of the fused bi-level step: memory, products, noise; its blocks and threads."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eblvm.kernels import grbm_bilevel
from eblvm.kernels.philox import Key
from tests.engine.methods.started import drawn
from tests.kernels.bilevel_cases import assert_same, bidsm, nets_of, start
from tests.kernels.comparison import needs_native


@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
@pytest.mark.parametrize("N", [0, 3])
def test_reference_says_what_its_unroll_keeps(N, sgd, monkeypatch) -> None:
    """The logits of every step and, for Adam, (g, m, v) of A and a."""
    size = B, D, H = (40, 41, 43)
    method = bidsm(N, 2, sgd=sgd, shared=True, exact=False)
    monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    start(method, size).fused()
    assert grbm_bilevel.reference.tape_bytes == 8 * N * (B * H + (0 if sgd else 3 * H * (D + 1)))


@needs_native(grbm_bilevel)
def test_memory_is_what_the_step_uses() -> None:
    """At (40, 41, 43) with N=3: Adam keeps (h', d delta/dl) and (g, m, v) of every step, the dual the first two."""
    size = B, D, H = (40, 41, 43)
    used = {}
    for sgd in (False, True):
        method = bidsm(3, 2, sgd=sgd, shared=sgd, exact=False)
        start(method, size).fused()
        used[sgd] = grbm_bilevel.memory()
    assert used[False][1] == 8 * 3 * (2 * B * H + 3 * (D * H + H))
    assert used[True][1] == 8 * 3 * 2 * B * H
    for scratch, tape in used.values():
        assert tape < scratch


@needs_native(grbm_bilevel)
@pytest.mark.parametrize(("N", "K"), [(0, 0), (0, 2), (1, 0), (3, 2)])
@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, False), (False, True), (True, True)])
def test_flops_are_those_of_its_products(shared, sgd, N, K) -> None:
    """Counted from torch's own products, which sizes beyond the plain loops all are."""
    size = (40, 41, 43)
    B, D, H = size
    method = bidsm(N, K, sgd=sgd, shared=shared, exact=False)
    begun = start(method, size)
    with FlopCounterMode(display=False) as counted:
        begun.fused()
    expected = grbm_bilevel.flops(B, D, H, K=K, N=N, shared=shared and K + N > 0, sgd=sgd)
    assert counted.get_total_flops() == expected
    with torch.profiler.profile(record_shapes=True) as profile:
        begun.fused()
    shapes = [event.input_shapes[1:3] for event in profile.events() if event.name == "aten::addmm_"]
    assert sum(2 * left[0] * left[1] * right[1] for left, right in shapes) == expected


def test_the_exact_kl_draws_only_the_noise_that_is_read() -> None:
    exact, sampled = (bidsm(2, 2, sgd=True, shared=True, exact=e) for e in (True, False))
    v = torch.zeros(7, 5)
    some, everything = (drawn(method, nets_of(5, 4), Key(3, 1), v)["latent"] for method in (exact, sampled))
    assert len(some) == len(everything) == 5
    assert torch.equal(some[0], everything[0])
    assert all(one is some[0] for one in some)


@needs_native(grbm_bilevel)
@pytest.mark.parametrize("shared", [False, True], ids=["fresh", "shared"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
@pytest.mark.parametrize(("N", "K", "exact"), [(0, 2, False), (3, 2, False), (2, 0, True)])
def test_blocks_of_units_run_their_steps_by_themselves(sgd, shared, exact, N, K) -> None:
    """As autograd, which knows no blocks, at a size with three of them, the last one smaller."""
    size = (21, 700, 450)
    method = bidsm(N, K, sgd=sgd, shared=shared, exact=exact)
    begun = start(method, size)
    begun.rates["unroll"] *= 0.01  # with so many visible units larger steps diverge, and rounding errors grow
    with torch.profiler.profile(record_shapes=True) as profile:
        by_blocks = begun.fused()
    widths = {event.input_shapes[0][1] for event in profile.events() if event.name == "aten::addmm_"}
    assert {160, 130} <= widths
    assert_same(by_blocks, begun.by_autograd(), 1e-10)


@needs_native(grbm_bilevel)
@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(("size", "seeds"), [((63, 100, 37), [1, 2, 3]), ((101, 130, 97), [1])])
def test_more_threads_change_nothing(size: tuple[int, int, int], seeds: list[int], sgd: bool) -> None:
    """A thread computes a replica, or some blocks of units."""
    method = bidsm(2, 2, sgd=sgd, shared=False, exact=False)
    begun = start(method, size, torch.tensor(seeds))
    one = begun.fused()
    torch.set_num_threads(2)
    try:
        assert_same(begun.fused(), one, 1e-12)
    finally:
        torch.set_num_threads(1)
