"""One training step of a configuration on a device, and how far two of them are apart.

Compared are the first moments after one step, which are proportional to the gradient, and the losses. theta itself is
not: Adam's first step is the gradient's sign times the learning rate, so theta hardly sees the gradient's size, hides
its sign behind weights that are much larger, and moves by as much where a gradient is nothing but rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.config import Config
from eblvm.engine.methods.base import Rows
from eblvm.engine.selftest.finding import HALF_MARGIN, Measured, bound_of
from eblvm.engine.training.start import initial_state
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

LEAST = {"float32": 1e-3, "float64": 1e-9}  # the least bound of a step
FRACTION = 1e-3  # of a tree's largest entry: what a tensor whose own entries are smaller is compared with
LOSS_SCALE = 32.0  # in fp16: at the scale of a run's start the first steps overflow, and are skipped
LOSSES = ("loss", "lower")


class Outcome(NamedTuple):
    """What a step computed, on the host: first moments of theta and of phi, and the losses, all in fp64."""

    theta: dict[str, Tensor]
    phi: dict[str, Tensor]
    losses: dict[str, Tensor]


class Trial:
    """Training steps of a configuration, with the same start, data and noise on every device and in every dtype."""

    def __init__(self, config: Config, shape: tuple[int, ...], device: str):
        self.config, config = config.replaced(device=device), config.replaced(dtype="float32")
        self.device, self.dtype = torch.device(device), getattr(torch, self.config.running.dtype)
        optimisation = config.optimisation
        seeds = optimisation.seeds()
        data = philox.uniform(Key(seeds, 0), purpose(Purpose.DATA), optimisation.batch, shape)
        one = data[0] if config.replicated else data
        self._drawn_by = config.method.nets(config, one.to(self.device))
        self._v, self._seed = data.to(self.device), seeds.to(self.device)
        nets = self.config.method.nets(self.config, self.placed(one))
        self.state = self.placed(initial_state(config, config.method.nets(config, one), seeds, data))
        if self.state.scale:
            value = torch.full_like(self.state.scale["value"], LOSS_SCALE)
            self.state = self.state._replace(scale=self.state.scale | {"value": value})
        self.step, self.count = self.config.step.of(self.config, nets), 0

    def run(self, number: int = 1) -> Self:
        method, optimisation, v = self.config.method, self.config.optimisation, self.placed(self._v)
        for _ in range(number):
            key = Key(self._seed, self.count)
            noise = self.placed(method.draw(self._drawn_by, key, Rows.of(key, self._v)))
            rates = optimisation.rates(self.count, method.rates(), v)
            self.state, self.info = self.step(self.state, v, noise, rates)
            self.count += 1
        return self

    def outcome(self) -> Outcome:
        """Return what the last step computed."""
        losses = {name: self.info[name] for name in LOSSES if name in self.info}
        trees = self.state.theta.moments.m, self.state.phi.moments.m, losses
        return Outcome(*({k: t.detach().cpu().double() for k, t in tree.items()} for tree in trees))

    def placed(self, tree: Any) -> Any:
        """Return a tree on the device, its floating-point tensors in the trial's dtype."""

        def place(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            return t.to(self.device, self.dtype if t.is_floating_point() else None)

        return tree_map(place, tree)


def exactly(config: Config) -> Config:
    """Return the specification of a configuration's step: plain, of the whole batch, in fp64."""
    plain: dict[str, Any] = {"dtype": "float64", "precision": "fp32", "fused": False, "micro_batch": None}
    plain |= {"channels_last": False, "checkpoint": "none"}
    return config.replaced(**read(config, plain))


def read(config: Config, settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of the settings that a configuration reads."""
    own = {leaf.name for leaf in config.leaves()}
    return {name: value for name, value in settings.items() if name in own}


def against_cpu(config: Config, shape: tuple[int, ...], device: str) -> Measured:
    """Compare a step on the device with the same one in fp64 on the CPU. The bound is a margin over what the CPU's own
    step in this precision differs by: in fp16 where that is tf32, which has fp16's digits and which no CPU has."""
    precision, least = config.model.precision, LEAST[config.running.dtype]
    on_host = config.replaced(precision="fp16") if precision == "tf32" else config
    tested = Trial(config, shape, device).run().outcome()
    exact = Trial(exactly(config), shape, "cpu").run().outcome()
    rounded = Trial(on_host, shape, "cpu").run().outcome()
    if precision == "fp32":
        return Measured(worst(tested, exact), bound_of(worst(rounded, exact), least))
    return Measured(overall(tested, exact), max(least, HALF_MARGIN * overall(rounded, exact)))


def worst(found: Outcome, expected: Outcome) -> float:
    """Return the largest error of an entry, over the largest entry of its tensor."""
    return largest(of_entries(tree, expected[i]) for i, tree in enumerate(found))


def of_entries(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    top = largest(t.abs().max() for t in expected.values())
    errors = {name: (found[name] - t).abs().max() for name, t in expected.items()}
    return largest(errors[name] / max(float(t.abs().max()), FRACTION * top, 1e-12) for name, t in expected.items())


def overall(found: Outcome, expected: Outcome) -> float:
    """Return the larger of both gradients' errors and the losses': norms over norms, as in 16 bits single entries are
    mostly rounding."""
    return largest(of_norms(tree, expected[i]) for i, tree in enumerate(found))


def of_norms(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    if not expected:
        return 0.0
    x, y = (torch.cat([tree[name].flatten() for name in expected]) for tree in (found, expected))
    return float((x - y).norm() / y.norm().clamp(min=1e-12))


def largest(figures: Any) -> float:
    """Return the largest of some figures, 0 of none; NaN is larger than all."""
    top = 0.0
    for figure in map(float, figures):
        top = figure if not figure <= top else top
    return top
