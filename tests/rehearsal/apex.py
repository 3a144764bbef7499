"""apex's Adam on a fake GPU: its numbers stay there."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from eblvm.engine.optim.apex import Apex
from eblvm.engine.optim.base import Moments, Weights
from tests.engine.optim import amp_c
from tests.rehearsal.watch import Watch


def steps() -> list[str]:
    """Return the waits and copies of two steps, the second with a flag that may stop it."""
    optimizer = Apex(clip_norm=1.0, average=0.9)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.device("cuda"):
        weights, gradient = Weights(tree(), Moments(tree(), tree(), torch.zeros(())), tree()), tree()
        lr, go = torch.empty(()), torch.empty((), dtype=torch.bool)
    with amp_c.installed(), mode, Watch() as watch:
        weights, _ = optimizer.move(weights, gradient, lr, in_place=True)
        optimizer.move(weights, gradient, lr, in_place=True, go=go)
    return [*watch.problems, *watch.waits, *watch.copies]


def tree() -> dict[str, Tensor]:
    return {"w": torch.empty(8, 3, 3, 3), "b": torch.empty(8)}


OPTIMIZERS: dict[str, Callable[[], list[str]]] = {"optimizer: apex": steps}
