"""Memory and time of a step on the GPU, and which fraction of its peak the step uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache, partial

import torch

from eblvm.engine.config import Config
from eblvm.engine.machine import device_memory, set_products
from eblvm.engine.planning.plan import RESERVED, StepCost, step_cost
from eblvm.engine.recipes import recipe
from eblvm.engine.selftest.finding import Measured, SelfCheck
from eblvm.engine.selftest.peaks import peak_of
from eblvm.engine.selftest.trial import Trial

WARM_UP, TIMED = 3, 20  # steps
PICTURE, FACE = (3, 32, 32), (560,)
Timed = Callable[[], tuple[float, StepCost]]  # seconds of a step, and its plan


def costs(device: str) -> Iterator[SelfCheck]:
    """Yield checks at the published sizes, or at a part of the batch that fits: times are for the record, unbounded."""
    yield SelfCheck("memory of a step beyond the plan", partial(beyond_the_plan, recipe("cifar10"), PICTURE, device))
    cifar = recipe("cifar10")
    cases = {
        "freyface bidsm N=5 K=5": (recipe("freyface"), FACE),
        "freyface dsm": (recipe("freyface", method="dsm"), FACE),
        "cifar10 mdsm": (recipe("cifar10", method="mdsm"), PICTURE),
        "cifar10 bimdsm N=0": (cifar, PICTURE),
        "cifar10 bimdsm N=0 tf32 channels-last": (cifar.replaced(precision="tf32", channels_last=True), PICTURE),
        "cifar10 bimdsm N=0 bf16 channels-last": (cifar.replaced(precision="bf16", channels_last=True), PICTURE),
    }
    for name, (config, shape) in cases.items():
        timed = cache(partial(step_seconds, config, shape, device))
        yield SelfCheck(f"time of a step, {name}", partial(milliseconds, timed))
        yield SelfCheck(f"use of the peak, {name}", partial(fraction_of_peak, timed, device))


def fitting(config: Config, shape: tuple[int, ...], device: str) -> StepCost:
    """Return the plan of a configuration, its batch halved until the step fits the device's free memory."""
    memory = device_memory(device)
    while not (cost := step_cost(config, shape)).fits(memory) and config.optimisation.batch > 1:
        config = config.replaced(batch=config.optimisation.batch // 2)
    return cost


def beyond_the_plan(config: Config, shape: tuple[int, ...], device: str) -> Measured:
    """Return how much more than the plan's count the allocator's peak is: it must fit the plan's reserve."""
    cost = fitting(config, shape, device)
    trial = Trial(cost.config, shape, device)
    torch.cuda.reset_peak_memory_stats(device)
    trial.run(2)
    return Measured((torch.cuda.max_memory_allocated(device) - cost.total_bytes) / 2**20, RESERVED / 2**20, "MiB")


def step_seconds(config: Config, shape: tuple[int, ...], device: str) -> tuple[float, StepCost]:
    """Return the time of a step, and its plan."""
    cost = fitting(config, shape, device)
    set_products(config.model.precision)
    try:
        trial = Trial(cost.config, shape, device)
        trial.run(WARM_UP)
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        trial.run(TIMED)
        torch.cuda.synchronize(device)
        return (time.perf_counter() - began) / TIMED, cost
    finally:
        set_products("fp32")


def milliseconds(timed: Timed) -> Measured:
    seconds, cost = timed()
    return Measured(1e3 * seconds, None, f"ms, batch {cost.config.optimisation.batch}")


def fraction_of_peak(timed: Timed, device: str) -> Measured:
    """Return the rate of a step's FLOPs over the device's peak (MFU). The FLOPs are the plan's: those of the matrix
    products and convolutions of the plain step, of which a fused one may need fewer."""
    seconds, cost = timed()
    name, precision = torch.cuda.get_device_name(device), cost.config.model.precision
    rate = cost.flops / seconds / 1e12
    peak = peak_of(name, precision)
    if peak is None:
        return Measured(rate, None, f"TFLOP/s in {precision}; peak unknown of {name}")
    return Measured(rate / peak[0], None, f"MFU in {precision}, of {peak[0]:g} TFLOP/s ({peak[1]})")
