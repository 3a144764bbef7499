"""The axes of suite `growth`: what grows along each, the cases at its values, and the powers that theory gives."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from eblvm.bench.tools.registry import Case
from eblvm.engine.recipes import recipe

FIGURES = {"step_ms": "time", "saved_mib": "bytes held", "peak_mib": "peak bytes", "gflop": "FLOPs"}


class Axis(NamedTuple):
    """`theory` has the power of x by figure; a figure without one is measured but not judged. Without `offset` all of a
    step's time grows with x, and c is 0: with three values, fitting both c and p would be arbitrary."""

    name: str
    title: str
    values: Sequence[int]
    case: Callable[[int], Case]
    theory: Mapping[str, float]
    offset: bool = True


def grbm(visible: int = 560, **changes: Any) -> Case:
    """A GRBM at Frey face's sizes, by the fused step."""
    return Case(recipe("freyface", method="bidsm").replaced(**changes), (visible,))


def deep(size: int = 16, **changes: Any) -> Case:
    """A small deep model. Axes whose time is judged use a wider one, where an operator's start-up time matters less."""
    method = changes.pop("method", "bimdsm")
    base = {"network": "lean", "width": 8, "depth": 12, "batch": 4}
    return Case(recipe("cifar10", method=method).replaced(**(base | changes)), (3, size, size))


def wider(size: int) -> Case:
    return deep(size, width=32, batch=2)


def layers(count: int) -> Case:
    """A deep model of so many layers, without a lower level, whose work does not depend on them."""
    return deep(32, method="mdsm", width=64, depth=count)


def newton(steps: int) -> Case:
    return grbm(best_response="newton", K=steps)


def toy(replicas: int) -> Case:
    return Case(recipe("checkerboard", method="bidsm").replaced(replicas=replicas), (2,))


TIME, HELD, PEAK, FLOPS = FIGURES
LINEAR = dict.fromkeys(FIGURES, 1.0)
GROWS, FIXED = {TIME: 1, FLOPS: 1}, {HELD: 0}  # in time and work; not in memory
AXES = (
    Axis("B", "batch, GRBM", (100, 200, 400, 800, 1600), lambda x: grbm(batch=x), LINEAR),
    Axis("D", "visible units, GRBM", (560, 1120, 2240, 4480, 8960), lambda x: grbm(x), GROWS),
    Axis("H", "latent units, GRBM", (100, 200, 400, 800), lambda x: grbm(latent=x), GROWS),
    Axis("H, large", "latent units beyond the cache", (800, 1600, 3200, 6400), lambda x: grbm(latent=x), GROWS),
    Axis("N", "unrolled steps, GRBM", (5, 10, 20, 40, 80), lambda x: grbm(N=x), GROWS | {HELD: 1}),
    Axis("K", "real lower steps, GRBM", (5, 10, 20, 40, 80, 160), lambda x: grbm(K=x), GROWS | FIXED),
    Axis("K, Newton", "the same beside a Newton step", (5, 10, 20, 40), newton, FIXED),
    Axis("L", "samples of h, VaGES-MDSM, deep", (2, 4, 8, 16), lambda x: deep(method="vages-mdsm", L=x), {FLOPS: 1}),
    Axis("N, deep", "unrolled steps, deep", (1, 2, 4, 8), lambda x: deep(N=x), {HELD: 0, FLOPS: 1}),
    Axis("K, deep", "real lower steps, deep", (1, 2, 4, 8), lambda x: deep(K=x), FIXED),
    Axis("batch, deep", "batch, deep", (4, 8, 16, 32, 64), lambda x: deep(32, width=32, batch=x), GROWS | {HELD: 1}),
    Axis("S", "image size, deep", (16, 32, 64, 128), wider, {TIME: 2, HELD: 2, FLOPS: 2}),
    Axis("width", "channels, deep", (16, 32, 64, 128), lambda x: deep(width=x), {FLOPS: 2}),
    Axis("depth", "layers, deep MDSM", (12, 18, 24), layers, GROWS | {HELD: 1}, offset=False),
    Axis("R", "replicas, checkerboard", (8, 16, 32, 64, 128), toy, GROWS | {PEAK: 1}),
)
