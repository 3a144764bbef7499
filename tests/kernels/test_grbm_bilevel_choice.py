"""The choice of the fused bi-level step: which methods have it, and when the autograd step runs instead."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.lower_level import Kl, KlExact
from eblvm.engine.methods.newton import Newton
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam, RmsProp
from eblvm.engine.recipes import recipe
from eblvm.engine.training.step import moved, vectorised
from eblvm.kernels import grbm_bilevel
from tests.engine.methods.started import ADAM, BETAS, assert_trees_close
from tests.kernels.bilevel_cases import bidsm, nets_of, start
from tests.kernels.comparison import needs_native

CPU, META = torch.device("cpu"), torch.device("meta")


@needs_native(grbm_bilevel)
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_step_without_vmap_equals_the_vmapped_one(clip, replicated) -> None:
    method = bidsm(2, 2, sgd=True, shared=True, exact=False)
    begun = start(method, (7, 5, 4), torch.tensor([3, 4, 5]) if replicated else 3)
    (state, *given), nets = begun.given, begun.nets
    state = state._replace(theta=state.theta._replace(average=tree_map(torch.clone, state.theta.params)))
    plain, optimizer = method.gradient(nets), Adam(BETAS, clip_norm=clip, average=0.9)
    fused = method.fused(nets, CPU, torch.float64)
    assert fused is not None
    expected, got = (
        moved(gradient, nets, optimizer, in_place=False)(state, *given)
        for gradient in (vectorised(plain) if replicated else plain, fused)
    )
    assert_trees_close(got, expected, rtol=1e-11, atol=1e-12)
    spent, _ = moved(fused, nets, optimizer, in_place=True)(state, *given)
    assert_trees_close(spent, expected[0], rtol=1e-11, atol=1e-12)
    old, new = state.theta, spent.theta
    assert all(new.params[k] is old.params[k] and new.average[k] is old.average[k] for k in old.params)


def test_the_rule_names_what_has_a_fused_form() -> None:
    method, nets = bidsm(1, 1, sgd=False, shared=True, exact=False), nets_of(5, 4)

    def fused(nets: Nets = nets, loss=method.loss, device: torch.device = CPU, dtype=torch.float64, **changes):
        return replace(method, estimator=replace(method.estimator, **changes), loss=loss).fused(nets, device, dtype)

    class OtherDivergence(Kl):
        def __call__(self, *_: Any) -> Tensor:
            return torch.zeros(())

    class OtherEnergy(GRBM):
        pass

    class OtherAdam(Adam):
        pass

    assert fused() is not None
    assert fused(dtype=torch.float32) is not None
    assert fused(divergence=KlExact()) is not None
    assert fused(best_response=Newton()) is not None
    assert fused(loss=Ssm()) is None
    assert fused(divergence=Kl(latent_samples=2)) is None
    assert fused(divergence=OtherDivergence()) is None
    assert fused(posterior=Exact()) is None
    assert fused(unroll_memory="recompute") is None
    assert fused(replace(nets, posterior=Bernoulli(5, 4, (3,)))) is None
    assert fused(replace(nets, energy=OtherEnergy(5, 4))) is None
    for optimizer in (OtherAdam(BETAS), RmsProp(), replace(ADAM, clip_norm=1.0), replace(ADAM, weight_decay=0.1)):
        assert fused(replace(nets, phi_optimizer=optimizer)) is None, optimizer
    assert fused(device=META) is None
    assert fused(dtype=torch.bfloat16) is None
    with pytest.raises(UserError, match="does not read --latent-samples; it is an option of"):
        recipe("checkerboard").replaced(divergence="kl-exact", latent_samples=2)


def test_a_step_that_is_differentiated_takes_autograd() -> None:
    """The gradient by autograd has a derivative of its own, here by the step size of the unroll."""
    begun = start(bidsm(1, 1, sgd=True, shared=True, exact=False), (7, 5, 4))
    (state, v, noise, rates), gradient_of = begun.given, begun.method.gradient(begun.nets)

    def norm(rate: Tensor) -> Tensor:
        gradient, *_ = gradient_of(state, v, noise, rates | {"unroll": rate})
        return gradient["W"].square().sum()

    slope = torch.func.grad(norm)(rates["unroll"])
    near = [norm(rates["unroll"] + e) for e in (1e-6, -1e-6)]
    torch.testing.assert_close(slope, (near[0] - near[1]) / 2e-6, rtol=1e-5, atol=1e-9)


def test_without_the_native_library_the_reference_is_used(monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_NATIVE", "0")
    program = (
        "from tests.kernels.bilevel_cases import *; from eblvm.kernels import grbm_bilevel;"
        "begun = start(bidsm(2, 2, sgd=True, shared=True, exact=False), (7, 5, 4));"
        "assert [b.name for b in grbm_bilevel.backends() if b.serves] == ['reference'] * 2;"
        "print(float(begun.fused()[2]['loss']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    expected = float(start(bidsm(2, 2, sgd=True, shared=True, exact=False), (7, 5, 4)).by_autograd()[2]["loss"])
    assert abs(float(done.stdout) - expected) < 1e-9 * abs(expected)
