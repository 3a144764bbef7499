"""`--best-response newton` as a part of training: the exact gradient on a GRBM, fused and not, and every way to run."""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.planning import plan
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training.log import read_rows
from eblvm.engine.training.loop import train
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import Started, first_step

SMALL = {"width": 2, "posterior_width": 2, "latent": 3, "batch": 8, "dtype": "float64"}


def grbm(**changes: object) -> Config:
    return recipes.recipe("digits").replaced(best_response="newton", latent=5, batch=8, dtype="float64", **changes)


def deep(method: str = "bimdsm", **changes: object) -> Config:
    config = recipes.recipe("digits", model="deep", method=method)
    return config.replaced(**{"best_response": "newton", "K": 2, **SMALL, **changes})


def started(config: Config) -> Started:
    return first_step(
        config, philox.uniform(Key(3, 0), 0, config.optimisation.batch, config.shape, dtype=torch.float64)
    )


@pytest.mark.parametrize("noise", ["shared", "fresh"])
@pytest.mark.parametrize("divergence", ["kl-exact", "kl"])
def test_on_a_grbm_it_is_the_exact_posteriors_gradient(noise: str, divergence: str) -> None:
    """Theorem 1 of BiSM: by autograd and by the fused step it equals DSM's own gradient, whatever q is."""
    begun = started(grbm(noise=noise, divergence=divergence))
    generic, generic_state, info = begun.by_autograd()
    fused, fused_state, _ = begun.fused()
    dsm = started(recipes.recipe("digits", method="dsm").replaced(latent=5, batch=8, dtype="float64"))
    exact, *_ = dsm._replace(state=begun.state, noise={"perturb": begun.noise["perturb"][-1:]}).by_autograd()
    for name, value in exact.items():
        torch.testing.assert_close(generic[name], value, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(fused[name], value, rtol=1e-10, atol=1e-10)
    for a, b in zip(tree_leaves(generic_state.phi), tree_leaves(fused_state.phi), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert info["response_slope_after"] < 1e-12


@pytest.mark.parametrize("method", ["bidsm", "bissm"])
def test_on_a_grbm_its_training_is_that_of_the_exact_method(method: str, tmp_path: Path) -> None:
    how = {"steps": 30, "validations": 0, "dtype": "float64"}
    train(recipes.recipe("checkerboard", method=method).replaced(best_response="newton", **how), tmp_path / "newton")
    train(recipes.recipe("checkerboard", method=method.removeprefix("bi")).replaced(**how), tmp_path / "exact")
    newton, exact = (SavedRun.open(tmp_path / name).thetas("last")[0] for name in ("newton", "exact"))
    for name, value in exact.items():
        torch.testing.assert_close(newton[name], value, rtol=1e-6, atol=1e-8)


def test_micro_batches_give_the_same_gradient() -> None:
    begun = started(deep())
    (whole, _, info), (parts, _, part_info) = begun.by_autograd(), begun.in_chunks(3)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-9, atol=1e-9 * float(value.abs().max()))
    assert set(part_info) == set(info)


@pytest.mark.parametrize("checkpoint", ["blocks", "all"])
@pytest.mark.parametrize("network", ["lean", "published"])
def test_checkpointing_gives_the_same_gradient(checkpoint: str, network: str) -> None:
    small = {k: v for k, v in SMALL.items() if network == "lean" or k != "posterior_width"}
    config = recipes.recipe("digits", model="deep").replaced(
        **{"best_response": "newton", "K": 1, **small, "network": network}
    )
    whole, *_ = started(config).by_autograd()
    found, *_ = started(config.replaced(checkpoint=checkpoint)).by_autograd()
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9 * float(value.abs().max()))


@pytest.mark.parametrize("network", ["lean", "published"])
def test_q_has_no_derivative_and_nothing_is_held_of_it(network: str) -> None:
    """Bytes held between the score and the loss's backward, and the peak: no more than with N = 0, which holds q's
    activations, for any number of samples of h."""
    config = recipes.recipe("cifar10", small=True).replaced(batch=8, network=network)
    unroll, *newtons = (
        plan.step_cost(config.replaced(**changes), (3, 32, 32))
        for changes in ({"N": 0}, *({"best_response": "newton", "response_samples": S} for S in (2, 16)))
    )
    for newton in newtons:
        assert newton.saved_bytes <= unroll.saved_bytes
        assert newton.peak_bytes <= unroll.peak_bytes


def test_a_cut_step_is_seen_in_the_log(tmp_path: Path) -> None:
    """A trust region that every step leaves, and one that none does."""
    for trust, cut in ((1e-4, 1.0), (1e4, 0.0)):
        config = deep(trust=trust, steps=2, log_every=1, validations=0)
        train(config, tmp_path / str(trust))
        rows = read_rows(tmp_path / str(trust) / "stats.jsonl")
        assert [row["response_cut"] for row in rows] == [cut] * 2
        assert all(row["response_slope"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("bimdsm", {}),
        pytest.param("bidsm", {"divergence": "kl"}, marks=pytest.mark.long),
        pytest.param("bissm", {}, marks=pytest.mark.long),
        ("bimdsm", {"response_block": "full", "response_score": "pairs"}),
        pytest.param("bimdsm", {"solver": "cg", "response_score": "single"}, marks=pytest.mark.long),
        ("bimdsm", {"micro_batch": 5, "checkpoint": "blocks"}),
        ("bimdsm", {"replicas": 2}),
        ("bimdsm", {"precision": "bf16", "dtype": "float32"}),
    ],
    ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else x,
)
def test_deep_models_train_and_resume(method: str, changes: dict, tmp_path: Path) -> None:
    config = deep(method, **{"dtype": "float32", **changes}).replaced(
        steps=6, checkpoint_every=3, validations=2, log_every=1
    )
    train(config, tmp_path / "whole")
    train(config.replaced(steps=3), tmp_path / "parts")
    train(config, tmp_path / "parts")
    whole, parts = (SavedRun.open(tmp_path / name).payload["state"] for name in ("whole", "parts"))
    for a, b in zip(tree_leaves(whole), tree_leaves(parts), strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()
    logged = (tmp_path / "whole" / "stats.jsonl").read_text()
    assert "response_slope" in logged
    assert "response_cut" in logged
