"""apex walks through memory: parameters in the order of images move as if they were contiguous."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from eblvm.engine.optim.apex import Apex
from eblvm.engine.optim.base import Moments, Weights
from eblvm.kernels.adam_unroll import Rule, reference


@pytest.fixture(autouse=True)
def apex_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for apex that does what its kernel does: element i of the memory of each tensor, without strides."""

    def walk(op: Any, overflow: Any, lists: Any, lr: float, b1: float, b2: float, eps: float, t: int, *_: Any) -> None:
        for g, p, m, v in zip(*lists, strict=True):
            memory = [x.as_strided((x.numel(),), (1,)) for x in (p, g, m, v)]
            moved = reference.step(*memory, torch.tensor(float(t)), torch.tensor(lr), Rule(b1, b2, eps, 0.0))
            for place, x in zip((memory[0], *memory[2:]), moved, strict=True):
                place.copy_(x)

    amp_c, apex, apply = ModuleType("amp_C"), ModuleType("apex"), ModuleType("apex.multi_tensor_apply")
    amp_c.multi_tensor_adam = None  # type: ignore[attr-defined]
    apply.multi_tensor_applier = walk  # type: ignore[attr-defined]
    for name, module in (("amp_C", amp_c), ("apex", apex), ("apex.multi_tensor_apply", apply)):
        monkeypatch.setitem(sys.modules, name, module)


def test_channels_last() -> None:
    generator = torch.Generator().manual_seed(0)
    p, g, m, v = (torch.randn(4, 3, 3, 3, generator=generator) for _ in range(4))
    expected = reference.step(p, g, m, v.abs(), torch.tensor(2.0), torch.tensor(0.1), Apex(eps_root=0.0).rule)
    last = [x.contiguous(memory_format=torch.channels_last) for x in (p, m, v.abs())]
    weights = Weights({"w": last[0]}, Moments({"w": last[1]}, {"w": last[2]}, torch.tensor(1.0)))
    gradient = {"w": g}  # as a pooled kernel's: another order than w's
    Apex(eps_root=0.0).move(weights, gradient, torch.tensor(0.1), in_place=True)
    torch.testing.assert_close(last[0], expected[0])
    torch.testing.assert_close(last[1], expected[1])
