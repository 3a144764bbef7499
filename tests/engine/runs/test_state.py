"""A training state as a checkpoint keeps it: what goes in comes out, of every kind of run and of older formats."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import State, from_tree, to_tree
from eblvm.engine.optim.base import Moments, Weights
from eblvm.engine.recipes import recipe
from eblvm.engine.runs.checkpoint import check_payload
from tests.engine.methods.started import first_step

CPU = torch.device("cpu")
TINY = {"width": 2, "posterior_width": 2, "generator_width": 2, "latent": 3}
CASES: dict[str, Config] = {
    "without phi": recipe("checkerboard", method="dsm"),
    "with phi": recipe("checkerboard"),
    "with a chain": recipe("checkerboard", method="pcd"),
    "momentum": recipe("checkerboard").replaced(optimizer="sgd", lower_optimizer="rmsprop"),
    "fp16": recipe("digits", "deep").replaced(precision="fp16", width=2, latent=3, posterior_width=2, head_width=5),
    "buffers": recipe("digits", method="bidvl").replaced(**TINY),
}


def state_of(config: Config) -> State:
    """The state after one step, so that all numbers differ from those of an empty one."""
    replicas = (config.optimisation.count,) if config.replicated else ()
    config = config.replaced(batch=4)
    begun = first_step(config, torch.rand(*replicas, 4, *config.shape))
    step = config.step.of(config, begun.nets)
    return step(*begun.given)[0]


def assert_equal(found: Any, expected: Any) -> None:
    (leaves, spec), (others, structure) = tree_flatten(found), tree_flatten(expected)
    assert spec == structure
    for a, b in zip(leaves, others, strict=True):
        assert isinstance(a, Tensor)
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


WAYS: list[dict[str, Any]] = [{}, {"ema": 0.9}, {"replicas": 2}, {"ema": 0.9, "replicas": 2}]


@pytest.mark.parametrize(
    ("name", "changes"),
    [(name, way) for name in CASES for way in WAYS if name != "fp16" or "replicas" not in way],  # it is for single runs
    ids=str,
)
def test_round_trip(name: str, changes: dict[str, Any]) -> None:
    state, file = state_of(CASES[name].replaced(**changes)), io.BytesIO()
    torch.save({"step": 1, "best": {}, "state": to_tree(state)}, file)
    file.seek(0)
    payload = torch.load(file, weights_only=True)
    check_payload(payload)
    assert_equal(from_tree(payload["state"], CPU), state)
    assert bool(state.phi.params) == (name not in ("without phi", "with a chain"))
    assert bool(state.theta.average) == ("ema" in changes)
    assert bool(state.phi.average) == ("ema" in changes and bool(state.phi.params))
    assert bool(state.chain) == (name == "with a chain")
    assert bool(state.scale) == (name == "fp16")
    assert bool(state.buffers) == (name == "buffers")
    assert state.theta.moments.step_count.shape == state.phi.moments.step_count.shape
    assert float(state.theta.moments.step_count.max()) == (name != "fp16")  # whose first scale overflows


def test_another_type_and_device() -> None:
    state = state_of(CASES["with phi"])
    double = from_tree(to_tree(state), CPU, torch.float64)
    assert {x.dtype for x in tree_leaves(double)} == {torch.float64}
    meta = from_tree(to_tree(state), torch.device("meta"))
    assert {x.device.type for x in tree_leaves(meta)} == {"meta"}


def test_names_of_older_versions() -> None:
    """Format 1 called the step count `taken`, and had neither buffers nor an average of phi."""
    state = state_of(CASES["with phi"])
    tree = to_tree(state)
    for name in ("theta_opt", "phi_opt"):
        tree[name] = {"taken" if k == "step_count" else k: x for k, x in tree[name].items()}
    for name in ("buffers", "phi_ema"):
        del tree[name]
    assert_equal(from_tree(tree, CPU), state)


def test_an_exported_model_has_no_moments() -> None:
    tree = to_tree(state_of(CASES["without phi"])) | {"theta_opt": ()}
    theta = from_tree(tree, CPU).theta
    assert isinstance(theta, Weights)
    assert_equal(theta.moments, Moments({}, {}, torch.zeros(())))


@pytest.mark.parametrize("name", ["theta", "theta_opt", "phi", "chain", "ema", "scale"])
def test_a_part_that_is_missing_is_said(name: str) -> None:
    tree = to_tree(state_of(CASES["without phi"]))
    del tree[name]
    with pytest.raises(UserError, match=f"it does not hold a run's state .*{name}"):
        check_payload({"step": 1, "best": {}, "state": tree})
