"""Counted bytes, FLOPs and calls against sums done by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools import floor, registry
from eblvm.bench.tools.registry import Case
from eblvm.engine.planning.footprint import Saved, Storages, footprint
from eblvm.kernels import grbm_bilevel

FLOAT = 4


def test_footprint_of_a_small_graph() -> None:
    x = torch.ones(1000, requires_grad=True)
    W = torch.ones(1000, 10)

    def step() -> None:
        y = torch.exp(x)  # saved: its output, 1000 floats
        z = y.view(1, -1) @ W  # saved: W and a view of y, an input and one more holder of the same storage
        torch.autograd.grad(z.sum(), x)

    found = footprint(step, lambda: [x, W])
    assert found.saved_bytes == 1000 * FLOAT
    # y and the cotangents of z's product and of exp are alive together; 10 for z, 1 for the sum, 1 for its cotangent.
    assert found.peak_bytes >= 3 * 1000 * FLOAT
    assert found.peak_bytes <= 3 * 1000 * FLOAT + 100
    assert found.flops == 2 * (2 * 1000 * 10)
    assert found.ops == 6  # exp, mm, sum, ones_like, mm, mul


def test_saved_bytes_are_those_held_at_once() -> None:
    x = torch.ones(100, requires_grad=True)

    def one_after_the_other() -> None:
        for _ in range(5):
            torch.autograd.grad(torch.exp(x).sum(), x)

    def all_at_once() -> None:
        y = x
        for _ in range(5):
            y = torch.exp(y)
        torch.autograd.grad(y.sum(), x)

    assert footprint(one_after_the_other, lambda: [x]).saved_bytes == 100 * FLOAT
    assert footprint(all_at_once, lambda: [x]).saved_bytes == 500 * FLOAT


def test_hooks_leave_the_gradient_alone_and_nothing_behind() -> None:
    step = CaseStep(Case(registry.recipe("digits").replaced(batch=13, latent=7, noise="fresh"), (11,)))
    plain = step.gradient(step.noise())
    storages = Storages(step.inputs())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(storages, t), lambda s: s.tensor):
        hooked = step.gradient(step.noise())
    for name, value in plain.items():
        assert torch.equal(value, hooked[name])
    assert storages.peak > 0
    assert storages.live == 0


def test_footprint_is_deterministic() -> None:
    step = CaseStep(Case(registry.recipe("digits").replaced(batch=13, latent=7), (11,)))
    step()
    assert footprint(step, step.inputs) == footprint(step, step.inputs)


def test_in_place_change_is_no_new_memory() -> None:
    x = torch.zeros(1000)

    def step() -> None:
        x.add_(1)

    assert footprint(step, lambda: [x]).peak_bytes == 0

    def views(t: Tensor = x) -> None:
        t.view(10, 100).t()

    assert footprint(views, lambda: [x]).ops == 0


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "autograd"])
@pytest.mark.parametrize("case", registry.cases("grbm"), ids=lambda case: case.name)
def test_floor_is_the_engine_s_own_products(case: Case, fused: bool) -> None:
    """FLOPs counted in the engine against the products written down: the same, or with autograd at most two more
    and the 16 power iterations of the automatic step size, which the fused step makes by loops."""
    if fused and not grbm_bilevel.native():
        pytest.skip("the native library is not built")
    B, D, H = 16, 24, 40
    case = replace(case, config=case.config.replaced(batch=B, latent=H, fused=fused), shape=(D,))
    step = CaseStep(case)
    step()
    counted = footprint(step, step.inputs).flops
    written = footprint(floor.FloorStep(case), list).flops
    more = 0 if step.fused else 2 * (2 * B * D * H) + 16 * 2 * (2 * B * D)
    assert written <= counted <= written + more


def test_scratch_memory_of_the_fused_step_is_counted() -> None:
    """By Adam's tape alone the peak grows with N: 2 B H for the lower step, 3 (D H + H) for Adam, and the noise."""
    if not grbm_bilevel.native():
        pytest.skip("the native library is not built")
    B, D, H = 16, 24, 40
    found = []
    for N in (1, 3):
        config = registry.recipe("digits").replaced(batch=B, latent=H, divergence="kl", noise="fresh", N=N)
        step = CaseStep(Case(config, (D,)))
        step()
        found.append(footprint(step, step.inputs))
    tape, noise = FLOAT * 2 * (2 * B * H + 3 * (D * H + H)), FLOAT * 2 * (B * D + B * H)
    batches = FLOAT * 2 * (B * D + B * H + B * H)  # each step's own, their x and x_bar
    assert found[1].saved_bytes - found[0].saved_bytes == tape
    assert found[1].peak_bytes - found[0].peak_bytes == tape + noise + batches
