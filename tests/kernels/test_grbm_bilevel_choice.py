"""The choice of the fused bi-level step: which methods have it, and when the autograd step runs instead."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.errors import UserError
from eblvm.engine.methods.bilevel import BilevelScore
from eblvm.engine.methods.divergences import Kl, KlExact
from eblvm.engine.methods.grbm import fused as grbm_fused
from eblvm.engine.methods.grbm.fused import fused_step_for, fused_update_for
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.update import Update
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.engine.recipes import recipe
from eblvm.kernels import grbm_bilevel
from tests.kernels.bilevel_cases import (
    BETAS,
    by_autograd,
    objective,
    start,
)
from tests.kernels.comparison import needs_native


@needs_native(grbm_bilevel)
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_update_without_vmap_equals_update(clip, replicated) -> None:
    size = (7, 5, 4)
    method = objective(size, 2, 2, sgd=True, shared=True, exact=False)
    state, v, noise, rates = start(method, size, torch.tensor([3, 4, 5]) if replicated else 3)
    state = state._replace(ema=tree_map(torch.clone, state.theta))
    update = Update(method, Adam(BETAS), clip, 0.9)
    step = fused_update_for(update)
    assert step is not None
    expected = (torch.vmap(update) if replicated else update)(state, v, noise, rates)
    got = step(state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), got, expected)
    kept, grbm_fused.runs_fused = grbm_fused.runs_fused, lambda *_: False
    try:
        again = step(state, v, noise, rates)
    finally:
        grbm_fused.runs_fused = kept
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), again, expected)
    in_place = fused_update_for(replace(update, in_place=True))
    assert in_place is not None
    spent, _ = in_place(state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), spent, expected[0])
    assert all(spent.theta[k] is state.theta[k] and spent.ema[k] is state.ema[k] for k in state.theta)


def test_the_rule_names_what_has_a_fused_form() -> None:
    size = (7, 5, 4)
    method = objective(size, 1, 1, sgd=False, shared=True, exact=False)
    bism = method.estimator
    assert isinstance(bism, BilevelScore)
    assert fused_step_for(method) is bism
    assert fused_step_for(replace(method, loss=Ssm())) is None
    assert fused_update_for(Update(replace(method, loss=Ssm()), Adam())) is None
    assert fused_step_for(replace(method, estimator=bism.with_options(divergence=Kl(latent_samples=2)))) is None
    exact = bism.with_options(divergence=KlExact())
    assert fused_step_for(replace(method, estimator=exact)) is exact
    with pytest.raises(UserError, match="does not read --latent-samples; it is an option of"):
        recipe("checkerboard").replaced(divergence="kl-exact", latent_samples=2)

    class OtherDivergence(Kl):
        def __call__(self, *_: Any) -> Tensor:
            return torch.zeros(())

    class OtherUnroll(BilevelScore):
        unroll_optimizer = Adam((0.5, 0.9))

    for changed in (
        replace(bism, posterior=Bernoulli(5, 4, (3,))),
        bism.with_options(divergence=OtherDivergence()),
        bism.with_options(posterior=Exact()),
        OtherUnroll(bism.options, bism.energy, bism.posterior, bism.optimizer),
    ):
        assert fused_step_for(replace(method, estimator=changed)) is None, changed


@needs_native(grbm_bilevel)
def test_a_step_that_is_differentiated_stays_with_autograd() -> None:
    size = (7, 5, 4)
    method = objective(size, 1, 1, sgd=True, shared=True, exact=False)
    state, v, noise, rates = start(method, size)
    runs_fused = partial(grbm_fused.runs_fused, method.estimator)
    assert runs_fused(state, v, rates)
    assert not runs_fused(state, v.clone().requires_grad_(), rates)
    assert not runs_fused(state, v.to("meta"), rates)
    assert not runs_fused(state, v.float(), rates)

    def norm(rate: Tensor) -> Tensor:
        gradient, *_ = method.gradient(state, v, noise, rates | {"unroll": rate})
        return gradient["W"].square().sum()

    slope = torch.func.grad(norm)(rates["unroll"])
    near = [norm(rates["unroll"] + e) for e in (1e-6, -1e-6)]
    torch.testing.assert_close(slope, (near[0] - near[1]) / 2e-6, rtol=1e-5, atol=1e-9)


def test_without_the_native_library_the_reference_is_used(monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_NATIVE", "0")
    program = (
        "from eblvm.engine.methods.grbm import fused as grbm_fused; from tests.kernels.bilevel_cases import *;"
        "from eblvm.kernels import grbm_bilevel;"
        "m = objective((7, 5, 4), 2, 2, sgd=True, shared=True, exact=False); a = start(m, (7, 5, 4));"
        "assert grbm_fused.runs_fused(m.estimator, a[0], a[1], a[3]);"
        "assert [b.name for b in grbm_bilevel.backends() if b.serves] == ['reference'] * 2;"
        "print(float(fused(m, *a)[2]['loss']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    method = objective((7, 5, 4), 2, 2, sgd=True, shared=True, exact=False)
    expected = float(by_autograd(method, *start(method, (7, 5, 4)))[2]["loss"])
    assert abs(float(done.stdout) - expected) < 1e-9 * abs(expected)
