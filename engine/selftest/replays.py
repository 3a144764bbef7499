"""Steps replayed as a CUDA graph against plain ones, both on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.recipes import recipe
from eblvm.engine.selftest.finding import Measured, SelfCheck
from eblvm.engine.selftest.steps import IMAGE, POINT, SMALL, Case, case
from eblvm.engine.selftest.trial import LEAST, Trial, largest, worst
from eblvm.engine.training.capture import CudaRecorder, Recorder
from eblvm.engine.training.graphs import GraphedStep

STEPS = 3  # the later ones have other noise and rates than the one that was captured


def replays(device: str, recorder: Callable[[], Recorder] = CudaRecorder) -> Iterator[SelfCheck]:
    for one in cases():
        yield SelfCheck(f"graph of {one.name}", partial(replayed, one, device, recorder))


def cases() -> Iterator[Case]:
    grbm, deep = recipe("freyface").replaced(latent=40, batch=20), recipe("cifar10").replaced(**SMALL)
    for method in ("bidsm", "dsm", "vages-dsm", "pcd"):
        yield case(f"grbm {method}", grbm, POINT, method=method)
    yield case("grbm bidsm replicas", grbm, POINT, replicas=3)
    for method in ("mdsm", "bimdsm"):
        yield case(f"deep {method}", deep, IMAGE, method=method)


def replayed(one: Case, device: str, recorder: Callable[[], Recorder]) -> Measured:
    """Compare steps from equal states: rounding in one must not add up over those before it."""
    plain, graphed = (Trial(one.config, one.shape, device) for _ in range(2))
    graphed.step = GraphedStep(graphed.step, recorder())
    figures = []
    for _ in range(STEPS):
        graphed.state = tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, plain.state)
        figures.append(worst(graphed.run().outcome(), plain.run().outcome()))
    return Measured(largest(figures), LEAST["float32"])
