"""Training steps on the GPU against the CPU's: all methods of a GRBM and of the deep net, and every kind of step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.machine import set_products
from eblvm.engine.methods import KINDS
from eblvm.engine.recipes import recipe
from eblvm.engine.selftest.finding import Measured, SelfCheck
from eblvm.engine.selftest.trial import against_cpu, read

# Settings that keep a comparison meaningful: KSD's kernel as wide as the data, for else it sees no pair of samples, and
# a finite difference far above rounding.
MEANINGFUL = {"kernel_width": 8.0, "difference_step": 0.5}
SMALL = {"width": 16, "depth": 12, "posterior_width": 16, "latent": 10, "batch": 6, "K": 2}
# Sizes (batch, visible, latent units) at which the tuner divides a kernel's loop among programs.
SPLIT = ((25, 560, 400), (64, 1024, 1024))
POINT, IMAGE, GRAY = (56,), (3, 16, 16), (1, 8, 8)


class Case(NamedTuple):
    name: str
    config: Config
    shape: tuple[int, ...]


def steps(device: str) -> Iterator[SelfCheck]:
    """Yield the comparison of a step of every case."""
    for one in cases():
        yield SelfCheck(f"step of {one.name}", partial(compared, one, device))


def compared(one: Case, device: str) -> Measured:
    set_products(one.config.model.precision)
    try:
        return against_cpu(one.config, one.shape, device)
    finally:
        set_products("fp32")


def cases() -> Iterator[Case]:
    yield from grbm()
    yield from deep()
    yield from bidvl()


def grbm() -> Iterator[Case]:
    """Yield every method, also of one sample and over replicas; the fused ones also where their kernels split."""
    base = recipe("freyface").replaced(latent=40)
    for method in KINDS:
        for batch in (20, fewest(method)):
            yield from taken(f"grbm {method} B={batch}", base, POINT, method=method, batch=batch)
        yield from taken(f"grbm {method} replicas", base, POINT, method=method, batch=20, replicas=3)
    for batch, visible, latent in SPLIT:
        for method in ("dsm", "ssm", "mdsm"):  # none has samples of binary units, which rounding can flip
            sizes = {"batch": batch, "latent": latent}
            yield case(f"grbm {method} {batch}x{visible}x{latent}", base, (visible,), method=method, **sizes)
    changed: dict[str, dict[str, Any]] = {
        "25x560x400": {"latent": 400},
        "plain": {"fused": False},
        "sgd": {"unroll_optimizer": "sgd"},
        "fresh": {"noise": "fresh"},
        "kl": {"divergence": "kl"},
        "newton": {"best_response": "newton"},
        "micro-batch": {"micro_batch": 8},
        "float64": {"dtype": "float64"},
    }
    for name, changes in changed.items():
        shape = (560,) if "latent" in changes else POINT
        yield case(f"grbm bidsm {name}", base, shape, method="bidsm", batch=25, **changes)


def fewest(method: str) -> int:
    """Return how few samples a method takes: two where it pairs them, or needs their standard deviation."""
    return 2 if KINDS[method].pairs_samples or hasattr(KINDS[method], "contrast") else 1


def deep() -> Iterator[Case]:
    base = recipe("cifar10").replaced(**SMALL)
    for method in KINDS:
        shape = GRAY if method == "sm" else IMAGE  # a third derivative for every visible unit
        yield from taken(f"deep {method}", base, shape, method=method)
    changed: dict[str, dict[str, Any]] = {
        "B=1": {"batch": 1},
        "B=25": {"batch": 25},
        "N=2": {"N": 2},
        "newton": {"best_response": "newton"},
        "checkpoint blocks": {"checkpoint": "blocks"},
        "micro-batch": {"micro_batch": 4},
        "replicas": {"replicas": 2},
        "channels-last": {"channels_last": True},
        "bf16 channels-last": {"precision": "bf16", "channels_last": True},
    }
    for name, changes in changed.items():
        yield case(f"deep bimdsm {name}", base, IMAGE, **changes)
    for method in ("mdsm", "bimdsm", "vages-mdsm"):
        for precision in ("tf32", "bf16", "fp16")[
            : 2 if method == "vages-mdsm" else 3
        ]:  # which does not scale its loss
            yield case(f"deep {method} {precision}", base, IMAGE, method=method, precision=precision)


def bidvl() -> Iterator[Case]:
    base = recipe("cifar10", small=True, method="bidvl")
    base = base.replaced(width=8, posterior_width=8, generator_width=8, latent=10, batch=6)
    changed: dict[str, dict[str, Any]] = {
        "": {},
        "N=1": {"N": 1},
        "sn-resnet": {"model": "sn-resnet"},
        "micro-batch": {"micro_batch": 4},
    }
    for name, changes in changed.items():
        yield case(f"bidvl {name}".strip(), base, (3, 32, 32), **changes)


def taken(name: str, base: Config, shape: tuple[int, ...], **changes: Any) -> Iterator[Case]:
    """Yield the case of a method, or none if the model does not go with it."""
    with suppress(UserError):
        yield case(name, base, shape, **changes)


def case(name: str, base: Config, shape: tuple[int, ...], **changes: Any) -> Case:
    """Return the case of a configuration with changes; its method and model first, which decide what it reads."""
    kinds = {kind: changes.pop(kind) for kind in ("method", "model") if kind in changes}
    config = base.replaced(**kinds)
    config = config.replaced(**read(config, MEANINGFUL) | changes)
    config.check()
    return Case(name, config, shape)
