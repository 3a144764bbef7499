"""DSM on a GRBM takes the fused step, which equals the generic one; the bi-level step has tests of its own."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.methods.bilevel import ExactScore
from eblvm.engine.methods.grbm.fused import fused_gradient, fused_step_for, fused_update_for, runs_fused
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.update import Update
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.optim.adam import Adam
from eblvm.kernels import grbm_dsm, philox
from eblvm.kernels.philox import Key

needs_native = pytest.mark.skipif(not grbm_dsm._NATIVE, reason="the native library is not built")
SIZES = [(7, 5, 4), (1, 1, 1), (63, 100, 37), (100, 2, 257)]  # B, D, H
BETAS = (0.9, 0.95)


def objective(size: tuple[int, int, int]) -> ScoreMatchingObjective:
    _, D, H = size
    return ScoreMatchingObjective(ExactScore(GRBM(D, H)), Dsm(0.3), Adam(BETAS))


def start(
    method: ScoreMatchingObjective, size: tuple[int, int, int], seed: Any = 5, dtype: torch.dtype = torch.float64
):
    """(state of a run under way, batch, noise, rates), with the axes of `seed` first."""
    B, D, _ = size
    lead = seed.shape if isinstance(seed, Tensor) else ()
    v = philox.normal(Key(seed, 0), 0, B, (D,), dtype=dtype)
    state = tree_map(lambda t: t.to(dtype), method.init(Key(seed, 0), v))
    state.theta["log_sigma"] = 0.2 * philox.normal(Key(seed, 1), 0, 1, (D,), dtype=dtype).squeeze(-2)
    moments = state.theta_opt._replace(
        v={k: 0.03 + torch.zeros_like(p) for k, p in state.theta.items()}, step_count=torch.full(lead, 2.0, dtype=dtype)
    )
    rates = {name: torch.full(lead, 0.01, dtype=dtype) for name in ("theta", "phi", "unroll")}
    return state._replace(theta_opt=moments), v, method.draw(Key(seed, 4), v), rates


def assert_same(got: Any, expected: Any, tolerance: float) -> None:
    assert got[0].keys() == expected[0].keys()
    for name, value in (expected[0] | expected[2]).items():
        found = (got[0] | got[2])[name]
        assert found.shape == value.shape, name
        assert float((found - value).abs().max()) <= tolerance * max(float(value.abs().max()), 1e-6), name


@needs_native
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_generic_step(size) -> None:
    method = objective(size)
    arguments = start(method, size)
    assert runs_fused(method.estimator, arguments[0], arguments[1], arguments[3])
    with torch.no_grad():
        expected = method.gradient(*arguments)
    got = fused_gradient(method.estimator, method.loss, *arguments)
    assert_same(got, expected, 1e-10)
    assert got[2].keys() == expected[2].keys()


@needs_native
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_update_without_vmap_equals_update(clip, replicated) -> None:
    size = SIZES[0]
    method = objective(size)
    state, v, noise, rates = start(method, size, torch.tensor([3, 4, 5]) if replicated else 3)
    state = state._replace(ema=tree_map(torch.clone, state.theta))
    update = Update(method, Adam(BETAS), clip, 0.9)
    step = fused_update_for(update)
    assert step is not None
    expected = (torch.vmap(update) if replicated else update)(state, v, noise, rates)
    got = step(state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), got, expected)


def test_the_rule_names_what_has_a_fused_form() -> None:
    method = objective(SIZES[0])
    assert fused_step_for(method) is method.estimator
    assert fused_step_for(replace(method, loss=Ssm())) is None
    assert fused_step_for(replace(method, loss=Mdsm((0.1, 1.0), "linear", 0.1))) is None

    class Other(GRBM):
        pass

    assert fused_step_for(replace(method, estimator=ExactScore(Other(5, 4)))) is None


def test_without_the_native_library_the_generic_step_serves() -> None:
    size = SIZES[0]
    program = (
        "import os; os.environ['EBLVM_NATIVE'] = '0'\n"
        "import torch\n"
        "from eblvm.engine.optim.optimizers import Adam\n"
        "from eblvm.engine.methods.grbm.fused import fused_update_for, runs_fused\n"
        "from eblvm.engine.methods.update import Update\n"
        "from tests.engine.methods.grbm.test_fused import BETAS, SIZES, objective, start\n"
        "method = objective(SIZES[0])\n"
        "state, v, noise, rates = start(method, SIZES[0])\n"
        "assert not runs_fused(method.estimator, state, v, rates)\n"
        "print(float(fused_update_for(Update(method, Adam(BETAS)))(state, v, noise, rates)[1]['loss']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    method = objective(size)
    with torch.no_grad():
        expected = float(method.gradient(*start(method, size))[2]["loss"])
    assert abs(float(done.stdout) - expected) < 1e-9 * abs(expected)


@needs_native
def test_a_step_that_is_differentiated_stays_with_autograd() -> None:
    method = objective(SIZES[0])
    state, v, _, rates = start(method, SIZES[0])
    assert runs_fused(method.estimator, state, v, rates)
    assert not runs_fused(method.estimator, state, v.clone().requires_grad_(), rates)
    assert not runs_fused(method.estimator, state, v.float(), rates)
