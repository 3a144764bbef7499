"""apex's Adam against the engine's, where it is installed; one sentence where it is not."""

import sys
from pathlib import Path

import pytest
import torch

from eblvm.engine.errors import UserError
from eblvm.engine.optim import apex
from eblvm.engine.optim.base import Moments, Weights
from eblvm.engine.recipes import recipe
from eblvm.engine.training.loop import train
from eblvm.kernels.adam_unroll import adam_unroll_
from tests.engine.optim import amp_c


@pytest.mark.skipif(not (apex.available() and torch.cuda.is_available()), reason="needs NVIDIA apex and a GPU")
def test_apex_adam_is_adam() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = {"a": (257,), "b": (63, 5), "c": ()}
    trees = [{k: torch.rand(s, generator=generator, device="cuda") for k, s in sizes.items()} for _ in range(4)]
    theta, gradient, m, v = trees
    expected = [[x.clone() for x in tree.values()] for tree in (theta, m, v)]
    t, lr = torch.tensor(3.0, device="cuda"), torch.tensor(1e-3, device="cuda")
    adam = apex.Apex()
    adam_unroll_(expected[0], list(gradient.values()), *expected[1:], t - 1, lr, adam.rule)
    moved, _ = adam.move(Weights(theta, Moments(m, v, t - 1)), gradient, lr, in_place=True)
    assert float(moved.moments.step_count) == 3
    for found, values in zip((theta, m, v), expected, strict=True):
        torch.testing.assert_close(list(found.values()), values)


@pytest.mark.skipif(apex.available(), reason="apex is installed")
def test_a_missing_apex_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe("digits").replaced(optimizer="apex")
    with pytest.raises(UserError, match="on --device cuda; use 'adam'"):
        config.check()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match="not installed here; use 'adam'"):
        train(config.replaced(device="cuda"), tmp_path)
    with pytest.raises(UserError, match="got dtype='float64', expected float32; use 'adam'"):
        config.replaced(device="cuda", dtype="float64").check()


def test_an_apex_without_the_capturable_step_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apex, "available", lambda: True)
    with amp_c.installed():
        apex.require()
        monkeypatch.delattr(sys.modules["amp_C"], "multi_tensor_adam_capturable")
        with pytest.raises(UserError, match="build a newer one, or use 'adam'"):
            apex.require()
