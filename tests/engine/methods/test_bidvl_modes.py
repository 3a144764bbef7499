"""BiDVL's ways to run: every one gives the step of the plain one, in fp64, or within its precision."""

from typing import Any

import pytest
import torch
from torch import Tensor

from eblvm.engine.autodiff import mixed_precision
from eblvm.engine.config import Config
from eblvm.engine.methods.base import State
from eblvm.engine.recipes import recipe
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import drawn, first_step, under_way

TINY = recipe("digits", method="bidvl").replaced(
    width=2, posterior_width=2, generator_width=2, latent=3, batch=7, dtype="float64", lower_lr=1e-2
)
VARIANTS: dict[str, dict[str, Any]] = {
    "N=0": {},
    "N=1": {"N": 1},
    "N=2 recompute": {"N": 2, "unroll_memory": "recompute"},
    "K=2 complete": {"K": 2, "opposite": "complete", "ratio_bias": "sigmoid"},
    "literal hinge by density": {"opposite": "literal", "upper": "hinge", "output": "real", "latent_term": "density"},
    "none, a power iteration in every pass": {"opposite": "none", "power_iteration": "pass"},
    "joint N=1": {"energy": "joint", "opposite": "none", "N": 1},
    "advil": {"divergence": "kl", "opposite": "complete"},
    "sn-resnet N=1": {"model": "sn-resnet", "N": 1},
}
MODES: dict[str, dict[str, Any]] = {
    "checkpoint": {"checkpoint": "blocks"},
    "micro-batch": {"micro_batch": 3},
    "both": {"checkpoint": "blocks", "micro_batch": 3},
    "channels_last": {"channels_last": True},
    "all": {"checkpoint": "blocks", "micro_batch": 4, "channels_last": True},
}


def varied(changes: dict[str, Any], base: Config = TINY) -> Config:
    if changes.get("model") == "sn-resnet":
        base = recipe("cifar10", method="bidvl").replaced(model="sn-resnet")
        base = base.replaced(
            width=2, posterior_width=2, generator_width=2, latent=3, batch=7, dtype="float64", lower_lr=1e-2
        )
    return base.replaced(**changes)


class Stepped:
    """A configuration's step under way, as a run takes it."""

    def __init__(self, config: Config):
        shape, dtype = (3, 32, 32) if config["model"] == "sn-resnet" else (1, 8, 8), getattr(torch, config["dtype"])
        v = philox.uniform(Key(1, 0), 0, config["batch"], shape, dtype=dtype)
        self.config, (self.method, self.nets, state, self.v, _, self.rates) = config, first_step(config, v)
        # Moments of a run under way: the derivative of Adam's first step is that of a sign.
        theta, phi = (under_way(weights, 5.0, v=0.5) for weights in (state.theta, state.phi))
        self.state: State = state._replace(theta=theta, phi=phi)
        self.step = config.step.of(config, self.nets)
        self.count = 0
        self.info: dict[str, Tensor] = {}

    def __call__(self) -> None:
        noise = drawn(self.method, self.nets, Key(0, self.count), self.v)
        self.state, self.info = self.step(self.state, self.v, noise, self.rates)
        self.count += 1

    def tensors(self) -> dict[str, Tensor]:
        state = self.state
        parts = {"theta": state.theta.params, "phi": state.phi.params, "buffers": state.buffers}
        parts |= {"m": state.phi.moments.m, "upper": state.theta.moments.m}
        return {f"{name} {k}": t for name, tree in parts.items() for k, t in tree.items()} | self.info


def stepped(config: Config, steps: int = 2, off: float = 0.0) -> dict[str, Tensor]:
    """The state after so many steps, on data that is off by this relative error, up or down."""
    found = Stepped(config)
    signs = 2 * philox.uniform(Key(2, 0), 0, len(found.v), tuple(found.v.shape[1:]), dtype=found.v.dtype).round() - 1
    found.v = found.v * (1 + off * signs)
    for _ in range(steps):
        found()
    return found.tensors()


def assert_same(
    found: dict[str, Tensor],
    expected: dict[str, Tensor],
    tolerance: float,
    nearby: dict[str, Tensor] | None = None,
) -> None:
    """To `tolerance` of each tensor's largest entry. `nearby` is what the same step gives for data that is off by one
    rounding: a cancelling sum, such as the gradient of a bias before a batch norm, moves by a hundred million
    roundings there, and is held to a hundred times that."""
    assert set(found) == set(expected)
    for name, x in expected.items():
        error = float((found[name] - x).abs().max())
        moved = 0.0 if nearby is None else float((nearby[name] - x).abs().max())
        assert error <= tolerance * float(x.abs().max()) + 100 * moved, f"{name}: {error}, {moved} by one rounding"


@pytest.fixture(scope="module")
def plain() -> dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """By variant, filled by the first test of each: the plain step, and that of data off by one rounding."""
    return {}


@pytest.mark.parametrize(
    ("variant", "mode"),
    [(v, m) for v in VARIANTS for m in MODES if v != "N=2 recompute" or "channels_last" not in MODES[m]],
)
def test_equals_the_plain_step(
    variant: str, mode: str, plain: dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]
) -> None:
    config = varied(VARIANTS[variant])
    if variant not in plain:
        plain[variant] = stepped(config), stepped(config, off=torch.finfo(torch.float64).eps)
    assert_same(stepped(config.replaced(**MODES[mode])), plain[variant][0], 1e-10, plain[variant][1])


@pytest.mark.parametrize("memory", ["store", "recompute"])
def test_channels_last_through_two_unrolled_steps(memory: str) -> None:
    """In float32, as torch's convolutions of float64 cannot."""
    config = TINY.replaced(dtype="float32", N=2, unroll_memory=memory)
    found, expected = stepped(config.replaced(channels_last=True)), stepped(config)
    for name, x in expected.items():
        if "bias" not in name:  # those before a norm are pure rounding
            torch.testing.assert_close(found[name], x, rtol=2e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    "variant", ["N=1", *(pytest.param(v, marks=pytest.mark.long) for v in ("N=0", "joint N=1", "K=2 complete"))]
)
def test_traced_step_is_the_plain_one(variant: str) -> None:
    """Its whole graph, as --compile takes it, without the compiler's own minutes."""
    config = varied(VARIANTS[variant])
    traced = Stepped(config)
    torch._dynamo.reset()
    step = traced.method.alternating(traced.nets, config.optimisation.theta_optimizer(), None, in_place=False)
    traced.step = torch.compile(torch.no_grad()(step), backend="aot_eager", dynamic=False, fullgraph=True)
    traced()
    assert_same(traced.tensors(), stepped(config, 1), 1e-10)


@pytest.mark.long
@pytest.mark.parametrize("variant", ["N=0", "N=1"])
def test_compiled_step_is_the_plain_one(variant: str) -> None:
    config = varied(VARIANTS[variant])
    torch._dynamo.reset()
    assert_same(stepped(config.replaced(compile=True), 3), stepped(config, 3), 1e-10)


@pytest.mark.parametrize("variant", ["N=0", "N=1", "K=2 complete", "joint N=1"])
@pytest.mark.parametrize("mode", [{}, {"checkpoint": "blocks"}, {"micro_batch": 3}, {"channels_last": True}])
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.15), ("fp16", 0.025)])
def test_sixteen_bits_are_within_their_precision(
    variant: str, mode: dict[str, Any], precision: str, tolerance: float
) -> None:
    """The gradients of both levels, which the first moments are made of. On nets of this kind torch.autocast of
    `bench/naive` is off by 1 to 10 % in bf16, and by up to 9 % in fp16: rounding turns some ReLUs."""
    config = varied(VARIANTS[variant]).replaced(dtype="float32")
    exact, found = Stepped(config), Stepped(config.replaced(precision=precision, **mode))
    if precision == "fp16":
        found.state = found.state._replace(scale=found.state.scale | {"value": torch.tensor(2.0**8)})
    for step in (exact, found):
        step()
        assert float(step.info.get("skipped", 0)) == 0
    for name in ("theta", "phi"):
        expected, got = (
            torch.cat([m.flatten() for m in getattr(s.state, name).moments.m.values()]) for s in (exact, found)
        )
        assert got.dtype == torch.float32
        assert 1e-5 < float((got - expected).norm() / expected.norm()) < tolerance


def test_an_overflow_leaves_parameters_and_statistics_and_lowers_the_scale() -> None:
    step = Stepped(TINY.replaced(dtype="float32", precision="fp16"))
    step.state = step.state._replace(scale=step.state.scale | {"value": torch.tensor(mixed_precision.LARGEST)})
    step.v = step.v * 1e6  # images beyond fp16 make infinite activations
    before = {k: t.clone() for k, t in step.tensors().items()}
    step()
    assert float(step.info["skipped"]) == 1
    assert float(step.state.scale["value"]) == mixed_precision.LARGEST / mixed_precision.FACTOR
    after = step.tensors()
    assert all(torch.equal(after[k], t) for k, t in before.items() if not k.endswith(".u"))


def test_scaled_gradients_are_the_plain_ones_in_exact_arithmetic() -> None:
    """The scale cancels in both levels, in the generator's pull and in unrolled steps."""
    for variant in ("N=1", "K=2 complete"):
        plain, scaled = (Stepped(varied(VARIANTS[variant])) for _ in range(2))
        value = torch.tensor(2.0**10, dtype=torch.float64)
        scaled.state = scaled.state._replace(scale={"value": value, "clean": torch.zeros_like(value)})
        for step in (plain, scaled):
            step()
        found = {k: t for k, t in scaled.tensors().items() if k not in ("loss_scale", "skipped")}
        assert_same(found, plain.tensors(), 1e-10)
