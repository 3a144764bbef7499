"""Costs of the fused bi-level step: memory, products, noise; its blocks and threads."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from eblvm.kernels import grbm_bilevel
from eblvm.kernels.philox import Key
from tests.kernels.bilevel_cases import assert_same, by_autograd, fused, objective, start
from tests.kernels.comparison import needs_native


@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
@pytest.mark.parametrize("N", [0, 3])
def test_reference_says_what_its_unroll_keeps(N, sgd, monkeypatch) -> None:
    """The logits of every step and, for Adam, (g, m, v) of A and a."""
    size = B, D, H = (40, 41, 43)
    method = objective(size, N, 2, sgd=sgd, shared=True, exact=False)
    monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    fused(method, *start(method, size))
    assert grbm_bilevel.reference.tape_bytes == 8 * N * (B * H + (0 if sgd else 3 * H * (D + 1)))


@needs_native(grbm_bilevel)
def test_memory_is_what_the_step_uses() -> None:
    """At (40, 41, 43) with N=3: Adam keeps (h', d delta/dl) and (g, m, v) of every step, the dual the first two."""
    size = B, D, H = (40, 41, 43)
    used = {}
    for sgd in (False, True):
        method = objective(size, 3, 2, sgd=sgd, shared=sgd, exact=False)
        fused(method, *start(method, size))
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
    method = objective(size, N, K, sgd=sgd, shared=shared, exact=False)
    arguments = start(method, size)
    with FlopCounterMode(display=False) as counted:
        fused(method, *arguments)
    expected = grbm_bilevel.flops(B, D, H, K=K, N=N, shared=shared and K + N > 0, sgd=sgd)
    assert counted.get_total_flops() == expected
    with torch.profiler.profile(record_shapes=True) as profile:
        fused(method, *arguments)
    shapes = [event.input_shapes[1:3] for event in profile.events() if event.name == "aten::addmm_"]
    assert sum(2 * left[0] * left[1] * right[1] for left, right in shapes) == expected


def test_the_exact_kl_draws_only_the_noise_that_is_read() -> None:
    size = (7, 5, 4)
    exact, sampled = (objective(size, 2, 2, sgd=True, shared=True, exact=e) for e in (True, False))
    v = torch.zeros(7, 5)
    some, everything = (method.draw(Key(3, 1), v)["latent"] for method in (exact, sampled))
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
    method = objective(size, N, K, sgd=sgd, shared=shared, exact=exact)
    arguments = start(method, size)
    arguments[-1]["unroll"] *= 0.01  # with so many visible units larger steps diverge, and rounding errors grow
    with torch.profiler.profile(record_shapes=True) as profile:
        by_blocks = fused(method, *arguments)
    widths = {event.input_shapes[0][1] for event in profile.events() if event.name == "aten::addmm_"}
    assert {160, 130} <= widths
    assert_same(by_blocks, by_autograd(method, *arguments), 1e-10)


@needs_native(grbm_bilevel)
@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(("size", "seeds"), [((63, 100, 37), [1, 2, 3]), ((101, 130, 97), [1])])
def test_more_threads_change_nothing(size: tuple[int, int, int], seeds: list[int], sgd: bool) -> None:
    """A thread computes a replica, or some blocks of units."""
    method = objective(size, 2, 2, sgd=sgd, shared=False, exact=False)
    arguments = start(method, size, torch.tensor(seeds))
    one = fused(method, *arguments)
    torch.set_num_threads(2)
    try:
        assert_same(fused(method, *arguments), one, 1e-12)
    finally:
        torch.set_num_threads(1)
