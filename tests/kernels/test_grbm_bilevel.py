"""The fused bi-level step: against the paper's double loop and against the engine's autograd step."""

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from eblvm.engine.optim.replicas import pick
from eblvm.kernels import grbm_bilevel
from tests.engine.methods.started import BETAS, Started
from tests.golden import brute_force
from tests.kernels.bilevel_cases import (
    LR,
    SIGMA,
    SIZES,
    TAU,
    UNROLL_LR,
    assert_same,
    bidsm,
    start,
)
from tests.kernels.comparison import needs_native


def with_given(begun: Started, given: tuple[Any, ...]) -> Started:
    return Started(begun.method, begun.nets, *given)


@pytest.fixture(params=["native", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "reference":
        monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    elif not grbm_bilevel._NATIVE:
        pytest.skip("the native library is not built")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("N", [0, 1, 4])
@pytest.mark.parametrize("K", [0, 2])
@pytest.mark.parametrize("exact", [False, True], ids=["kl", "kl-exact"])
@pytest.mark.parametrize("shared", [False, True], ids=["fresh", "shared"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
def test_equals_the_papers_double_loop(sgd, shared, exact, K, N) -> None:
    size = SIZES[0]
    method = bidsm(N, K, sgd=sgd, shared=shared, exact=exact)
    begun = start(method, size)
    _, _, state, v, noise, rates = begun
    gradient, moved, _ = begun.fused()
    batches = [method.loss.perturb(v, eps, noise) for eps in noise["perturb"]]
    eps = batches[-1].eps

    def upper(score_fn, x):
        x = x.detach().requires_grad_()
        return 0.5 * ((score_fn(x) + eps / SIGMA) ** 2).sum(-1).mean()

    expected, phi = brute_force.bism_gradient(
        state.theta.params,
        state.phi.params,
        (state.phi.moments.m, state.phi.moments.v, int(state.phi.moments.step_count)),
        [b.v for b in batches] * (K + N + 1 if shared else 1),
        [n[:, 0] for n in noise["latent"]],
        upper,
        K=K,
        N=N,
        lr=LR if sgd else UNROLL_LR,
        unroll_lr=UNROLL_LR,
        sgd=sgd,
        exact=exact,
        tau=TAU,
        betas=BETAS,
    )
    if not sgd and K:  # the double loop has one rate for real and unrolled Adam steps
        gradient, moved, _ = start(method, size)._replace(rates=rates | {"phi": rates["unroll"]}).fused()
    for name, value in expected.items():
        assert value.abs().max() > 0 or (N == 0 and name == "c")
        assert (gradient[name] - value).abs().max() <= 1e-9 * value.abs().max(), name
    for name, value in phi.items():
        torch.testing.assert_close(moved.phi.params[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("exact", [False, True], ids=["kl", "kl-exact"])
@pytest.mark.parametrize(("shared", "sgd", "auto"), [(False, False, False), (True, False, False), (True, True, True),
                                                     (True, True, False), (False, True, True)])  # fmt: skip
@pytest.mark.parametrize(("N", "K"), [(0, 3), (3, 2), (2, 0), (0, 0)])
def test_equals_the_autograd_step(size, exact, shared, sgd, auto, N, K, nan_filled) -> None:
    # The automatic step is the exact KL's: under the sampled one, whose curvature it does not bound, rounding grows.
    method = bidsm(N, K, sgd=sgd, shared=shared, exact=exact, auto=auto and exact)
    begun = start(method, size)
    assert_same(begun.fused(), begun.by_autograd(), 1e-9)


@needs_native(grbm_bilevel)
@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    "size", [(63, 100, 37), (64, 304, 48), (7, 560, 400), (1, 2, 4), (100, 2, 4), (101, 2, 4)], ids=str
)
def test_float32_is_as_good_as_autograd_in_float32(size, shared, sgd) -> None:
    method = bidsm(3, 2, sgd=sgd, shared=shared, exact=sgd, auto=sgd)
    double = start(method, size)
    single = with_given(double, tree_map(torch.Tensor.float, double.given))
    exact = double.by_autograd()[0]
    for name, value in exact.items():
        errors = [
            float((run()[0][name].double() - value).abs().max() / value.abs().max())
            for run in (single.fused, single.by_autograd)
        ]
        assert errors[0] <= 3 * errors[1] + 1e-6, (name, errors)


@needs_native(grbm_bilevel)
@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, True)])
@pytest.mark.parametrize("size", [(7, 5, 4), (20, 3, 4)], ids=str)
def test_replicas_equal_single_runs(size, shared, sgd) -> None:
    method = bidsm(2, 2, sgd=sgd, shared=shared, exact=False)
    seeds = torch.tensor([3, 4, 5])
    begun = start(method, size, seeds)
    stacked, gradient = begun.fused(), method.fused(begun.nets, begun.v.device, begun.v.dtype)
    assert gradient is not None
    with torch.no_grad():
        mapped = torch.vmap(gradient)(*begun.given)
    assert_same(mapped, stacked, 0.0)
    for r in range(3):
        assert_same(pick(stacked, r), with_given(begun, pick(begun.given, r)).fused(), 1e-13)
    two = torch.vmap(torch.vmap(gradient), in_dims=1)
    doubled = tree_map(lambda t: torch.stack([t, t], 1).movedim(0, 1).movedim(0, 1), begun.given)
    with torch.no_grad():
        assert_same(tree_map(lambda t: t[1], two(*doubled)), stacked, 0.0)


@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, True)])
def test_replicas_of_the_reference_equal_single_runs(shared, sgd, monkeypatch) -> None:
    size = (7, 5, 4)
    method = bidsm(2, 2, sgd=sgd, shared=shared, exact=sgd, auto=sgd)
    begun = start(method, size, torch.tensor([3, 4, 5]))
    monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    stacked = begun.fused()
    for r in range(3):
        assert_same(pick(stacked, r), with_given(begun, pick(begun.given, r)).fused(), 1e-12)


@needs_native(grbm_bilevel)
def test_non_contiguous_inputs() -> None:
    size = (7, 5, 4)
    method = bidsm(2, 2, sgd=False, shared=False, exact=False)
    begun = start(method, size)
    strided = with_given(begun, tree_map(lambda t: torch.stack([t, t], -1)[..., 0], begun.given))
    assert not strided.v.is_contiguous()
    assert_same(strided.fused(), begun.fused(), 0.0)


@needs_native(grbm_bilevel)
def test_inputs_are_not_changed_and_results_are_fresh() -> None:
    size = (7, 5, 4)
    for K in (0, 2):
        method = bidsm(2, K, sgd=False, shared=True, exact=False)
        begun = start(method, size)
        before = tree_map(torch.clone, begun.given)
        _, moved, _ = begun.fused()
        tree_map(torch.testing.assert_close, begun.given, before)
        moved.phi.params["net.0.weight"].zero_()
        tree_map(torch.testing.assert_close, begun.given, before)


@needs_native(grbm_bilevel)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": torch.zeros(7, 4).double()}, r"v of shape \[7, 4\]; expected \[7, 5\]"),
        ({"perturb": [torch.zeros(7, 5).double()] * 2}, r"2 perturbations; expected 1 \(shared\) or one per step, 3"),
        ({"perturb": [torch.zeros(7, 5)]}, "perturb of dtype Float; expected that of W, Double"),
        ({"latent": []}, "0 latent noises; expected 3"),
        ({"phi_rate": torch.zeros(2).double()}, r"phi_rate of shape \[2\]; expected \[\]"),
        ({"unroll_rate": torch.zeros(2).double()}, r"unroll_rate of shape \[2\]; expected \[\]"),
        ({"settings": {"K": -1}}, "K=-1"),
    ],
)
def test_errors_name_the_argument(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        step_of_zeros(change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": torch.zeros(7, 4).double()}, r"v of shape \(7, 4\); expected \(7, 5\)"),
        ({"perturb": [torch.zeros(7, 5)]}, r"perturb\[0\] of dtype torch.float32; expected that of W, torch.float64"),
        ({"latent": []}, "0 latent noises; expected 3"),
        ({"unroll_rate": torch.zeros(2).double()}, r"unroll_rate of shape \(2,\); expected \(\)"),
        ({"settings": {"N": -1}}, "N=-1; expected both at least 0"),
    ],
)
def test_errors_of_the_reference_name_the_argument(change, message, monkeypatch) -> None:
    monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    with pytest.raises(ValueError, match=message):
        step_of_zeros(change)


def step_of_zeros(change: dict[str, Any]) -> None:
    """A step at K=N=1, which works, then one with the changed arguments."""
    D, H, B = 5, 4, 7
    settings = grbm_bilevel.Settings(K=1, N=1, sigma=0.3, tau=0.1, exact=False, rule=grbm_bilevel.Rule())
    place = {"dtype": torch.float64}
    theta = grbm_bilevel.Theta(*(torch.zeros(s, **place) for s in ((D, H), (D,), (H,), (D,))))
    shapes = ((H, D), (H,), (H, D), (H,), (H, D), (H,), ())
    arguments: dict[str, Any] = {
        "v": torch.zeros(B, D, **place),
        "perturb": [torch.zeros(B, D, **place)],
        "latent": [torch.zeros(B, H, **place)] * 3,
        "theta": theta,
        "phi": grbm_bilevel.Phi(*(torch.ones(s, **place) for s in shapes)),
        "phi_rate": torch.tensor(0.1, **place),
        "unroll_rate": torch.tensor(0.1, **place),
        "settings": settings,
    }
    grbm_bilevel.grbm_bilevel(**arguments)
    if "settings" in change:
        change = {"settings": settings._replace(**change["settings"])}
    grbm_bilevel.grbm_bilevel(**(arguments | change))
