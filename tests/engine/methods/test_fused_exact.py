"""The fused gradient of DSM on a GRBM equals the one by autograd; the bi-level step has tests of its own."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.methods import KINDS
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.exact import FreeEnergy
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.optim.adam import Adam
from eblvm.engine.recipes import recipe
from eblvm.engine.training.step import moved, vectorised
from eblvm.kernels import grbm_dsm, philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import (
    ADAM,
    BETAS,
    Started,
    assert_trees_close,
    cast,
    counted,
    drawn,
    rates_of,
    under_way,
)

needs_native = pytest.mark.skipif(not grbm_dsm._NATIVE, reason="the native library is not built")
SIZES = [(7, 5, 4), (1, 1, 1), (63, 100, 37), (100, 2, 257)]  # B, D, H
DSM = ScoreMatching(FreeEnergy(), Dsm(0.3))
CPU, META = torch.device("cpu"), torch.device("meta")


def start(size: tuple[int, int, int], seed: int | Tensor = 5) -> Started:
    """A run under way, with the axes of `seed` first."""
    B, D, H = size
    nets, replicas = Nets(GRBM(D, H)), tuple(torch.as_tensor(seed).shape)
    v = philox.normal(Key(seed, 0), 0, B, (D,), dtype=torch.float64)
    state = cast(DSM.init(nets, Key(seed, 0), v, ADAM))
    state.theta.params["log_sigma"] = 0.2 * philox.normal(Key(seed, 1), 0, 1, (D,), dtype=v.dtype).squeeze(-2)
    theta, phi = under_way(state.theta, 2.0, v=0.03, replicas=replicas), counted(state.phi, 0.0, replicas)
    state = state._replace(theta=theta, phi=phi)
    noise = drawn(DSM, nets, Key(seed, 4), v)
    return Started(DSM, nets, state, v, noise, rates_of(0.01, replicas=replicas))


@needs_native
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_generic_step(size) -> None:
    begun = start(size)
    (expected, _, expected_info), (got, _, info) = begun.by_autograd(), begun.fused()
    assert got.keys() == expected.keys()
    assert info.keys() == expected_info.keys()
    for name, value in (expected | expected_info).items():
        found = (got | info)[name]
        assert found.shape == value.shape, name
        assert float((found - value).abs().max()) <= 1e-10 * max(float(value.abs().max()), 1e-6), name


@needs_native
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_step_without_vmap_equals_the_vmapped_one(clip, replicated) -> None:
    begun = start(SIZES[0], torch.tensor([3, 4, 5]) if replicated else 3)
    average = tree_map(torch.clone, begun.state.theta.params)
    state, nets = begun.state._replace(theta=begun.state.theta._replace(average=average)), begun.nets
    plain, optimizer = DSM.gradient(nets), Adam(BETAS, clip_norm=clip, average=0.9)
    fused = DSM.fused(nets, CPU, torch.float64)
    assert fused is not None
    expected, got = (
        moved(gradient, nets, optimizer, in_place=False)(state, *begun.given[1:])
        for gradient in (vectorised(plain) if replicated else plain, fused)
    )
    assert_trees_close(got, expected, rtol=1e-11, atol=1e-12)


@needs_native
def test_the_rule_names_what_has_a_fused_form() -> None:
    nets = Nets(GRBM(5, 4))

    class Other(GRBM):
        pass

    def fused(method: ScoreMatching, nets: Nets = nets, device: torch.device = CPU, dtype: torch.dtype = torch.float64):
        return method.fused(nets, device, dtype)

    for dtype in (torch.float32, torch.float64):
        assert fused(DSM, dtype=dtype) is not None
        assert fused(ScoreMatching(FreeEnergy(), Ksd()), dtype=dtype) is not None
    assert fused(ScoreMatching(FreeEnergy(), Ssm())) is None
    assert fused(ScoreMatching(FreeEnergy(), Mdsm((0.1, 1.0), "linear", 0.1))) is None
    assert fused(DSM, Nets(Other(5, 4))) is None
    assert fused(DSM, device=META) is None
    assert fused(DSM, dtype=torch.bfloat16) is None


@pytest.mark.parametrize("kind", KINDS)
def test_no_method_has_a_fused_form_where_no_kernel_runs(kind: str) -> None:
    config = recipe("digits" if KINDS[kind].generates else "checkerboard", method=kind)
    data = torch.rand(6, *config.shape)
    nets = config.method.nets(config, data)
    assert config.method.fused(nets, META, torch.float32) is None
    assert config.method.fused(nets, CPU, torch.float16) is None
    assert config.method.fused(nets, CPU, torch.bfloat16) is None


def test_the_default_step_without_the_native_library_is_the_generic_one() -> None:
    program = (
        "from dataclasses import replace\n"
        "import torch\n"
        "from eblvm.engine.recipes import recipe\n"
        "from tests.engine.methods.test_fused_exact import CPU, DSM, SIZES, start\n"
        "begun = start(SIZES[0])\n"
        "assert DSM.fused(begun.nets, CPU, torch.float64) is None\n"
        "config = replace(recipe('checkerboard', method='dsm').replaced(dtype='float64'), method=DSM)\n"
        "step = config.step.of(config, begun.nets)\n"
        "print(float(step(*begun.given)[1]['loss']))"
    )
    environment = os.environ | {"EBLVM_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    expected = float(start(SIZES[0]).by_autograd()[2]["loss"])
    assert abs(float(done.stdout) - expected) < 1e-9 * abs(expected)
