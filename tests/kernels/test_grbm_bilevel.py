"""The fused bi-level step: against the paper's double loop and against the engine's autograd step."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from eblvm.engine.errors import UserError
from eblvm.engine.methods.bilevel import BilevelScore
from eblvm.engine.methods.divergences import Kl, KlExact
from eblvm.engine.methods.estimators.bism import Bism
from eblvm.engine.methods.grbm import fused as grbm_fused
from eblvm.engine.methods.grbm.fused import fused_gradient, fused_step_for, fused_update_for
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.types import State
from eblvm.engine.methods.update import Update
from eblvm.engine.models.posteriors import Exact
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.optimizers import Adam
from eblvm.engine.recipes import recipe
from eblvm.kernels import grbm_bilevel, philox
from eblvm.kernels.philox import Key, Purpose
from tests.golden import brute_force

needs_native = pytest.mark.skipif(not grbm_bilevel._NATIVE, reason="the native library is not built")
SIGMA, TAU, LR, UNROLL_LR, BETAS = 0.3, 0.1, 0.02, 0.3, (0.9, 0.95)
# (B, D, H): the dual unroll (B < 2D), the primal one, one of everything, odd and large enough for torch's products.
SIZES = [(7, 5, 4), (20, 3, 4), (1, 1, 1), (63, 100, 37), (100, 2, 257)]


@pytest.fixture(params=["native", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "reference":
        monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    elif not grbm_bilevel._NATIVE:
        pytest.skip("the native library is not built")


def objective(
    size: tuple[int, int, int], N: int, K: int, *, sgd: bool, shared: bool, exact: bool, auto: bool = False
) -> ScoreMatchingObjective:
    _, D, H = size
    adam = Adam(BETAS)
    options = Bism(
        K=K,
        N=N,
        divergence=KlExact() if exact else Kl(),
        noise="shared" if shared else "fresh",
        unroll_optimizer="sgd" if sgd else "adam",
        unroll_lr=None if auto else UNROLL_LR,
    )
    bism = BilevelScore(options, GRBM(D, H), Bernoulli(D, H, temperature=TAU), adam)
    return ScoreMatchingObjective(bism, Dsm(SIGMA), adam)


def start(
    method: ScoreMatchingObjective, size: tuple[int, int, int], seed: Any = 5, dtype: torch.dtype = torch.float64
):
    """(state of a run under way, batch, noise, rates), with the axes of `seed` first."""
    B, D, _ = size
    lead = seed.shape if isinstance(seed, Tensor) else ()
    v = philox.normal(Key(seed, 0), philox.purpose(Purpose.DATA), B, (D,), dtype=dtype)
    state = tree_map(lambda t: t.to(dtype), method.init(Key(seed, 0), v))
    state.theta["log_sigma"] = 0.2 * philox.normal(
        Key(seed, 1), philox.purpose(Purpose.INIT_THETA), 1, (D,), dtype=dtype
    ).squeeze(-2)
    moments = state.phi_opt._replace(
        m={k: 0.01 * torch.ones_like(p) for k, p in state.phi.items()},
        v={k: 0.02 + 0.01 * p.square() for k, p in state.phi.items()},
        step_count=torch.full(lead, 3.0, dtype=dtype),
    )
    upper = state.theta_opt._replace(
        v={k: 0.03 + torch.zeros_like(p) for k, p in state.theta.items()}, step_count=torch.full(lead, 2.0, dtype=dtype)
    )
    rates = {"theta": torch.full(lead, 0.01, dtype=dtype), "phi": torch.full(lead, LR, dtype=dtype)}
    rates["unroll"] = torch.full(lead, UNROLL_LR, dtype=dtype)
    noise = method.draw(Key(seed, 4), v)
    return state._replace(phi_opt=moments, theta_opt=upper), v, noise, rates


def by_autograd(method: ScoreMatchingObjective, *arguments: Any) -> Any:
    """The engine's generic step."""
    with torch.no_grad():
        return method.gradient(*arguments)


def fused(method: ScoreMatchingObjective, state: State, v: Tensor, noise: Any, rates: Any) -> Any:
    estimator = fused_step_for(method)
    assert estimator is not None
    return fused_gradient(estimator, method.loss, state, v, noise, rates)


def assert_same(got: Any, expected: Any, tolerance: float) -> None:
    """Gradient, phi, its moments and what is logged, each relative to its largest entry."""
    trees = [
        (r[0], r[1].phi, r[1].phi_opt.m, r[1].phi_opt.v, {"n": r[1].phi_opt.step_count}, r[2]) for r in (got, expected)
    ]
    for g, e in zip(*trees, strict=True):
        assert g.keys() == e.keys()
        for name, value in e.items():
            assert g[name].shape == value.shape, name
            assert g[name].dtype == value.dtype, name
            scale = float(value.abs().max())
            assert float((g[name] - value).abs().max()) <= tolerance * max(scale, 1e-6), name


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("N", [0, 1, 4])
@pytest.mark.parametrize("K", [0, 2])
@pytest.mark.parametrize("exact", [False, True], ids=["kl", "kl-exact"])
@pytest.mark.parametrize("shared", [False, True], ids=["fresh", "shared"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
def test_equals_the_papers_double_loop(sgd, shared, exact, K, N) -> None:
    size = SIZES[0]
    method = objective(size, N, K, sgd=sgd, shared=shared, exact=exact)
    state, v, noise, rates = start(method, size)
    gradient, moved, _ = fused(method, state, v, noise, rates)
    batches = [method.loss.perturb(v, eps, noise) for eps in noise["perturb"]]
    eps = batches[-1].eps

    def upper(score_fn, x):
        x = x.detach().requires_grad_()
        return 0.5 * ((score_fn(x) + eps / SIGMA) ** 2).sum(-1).mean()

    expected, phi = brute_force.bism_gradient(
        state.theta,
        state.phi,
        (state.phi_opt.m, state.phi_opt.v, int(state.phi_opt.step_count)),
        [b.v for b in batches] * (K + N + 1 if shared else 1),
        [n[0] for n in noise["latent"]],
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
        state, v, noise, _ = start(method, size)
        gradient, moved, _ = fused(method, state, v, noise, rates | {"phi": rates["unroll"]})
    for name, value in expected.items():
        assert value.abs().max() > 0 or (N == 0 and name == "c")
        assert (gradient[name] - value).abs().max() <= 1e-9 * value.abs().max(), name
    for name, value in phi.items():
        torch.testing.assert_close(moved.phi[name], value, rtol=1e-12, atol=1e-13)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("exact", [False, True], ids=["kl", "kl-exact"])
@pytest.mark.parametrize(("shared", "sgd", "auto"), [(False, False, False), (True, False, False), (True, True, True),
                                                     (True, True, False), (False, True, True)])  # fmt: skip
@pytest.mark.parametrize(("N", "K"), [(0, 3), (3, 2), (2, 0), (0, 0)])
def test_equals_the_autograd_step(size, exact, shared, sgd, auto, N, K, nan_filled) -> None:
    # The automatic step is the exact KL's: under the sampled one, whose curvature it does not bound, rounding grows.
    method = objective(size, N, K, sgd=sgd, shared=shared, exact=exact, auto=auto and exact)
    arguments = start(method, size)
    assert_same(fused(method, *arguments), by_autograd(method, *arguments), 1e-9)


@needs_native
@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, True)])
@pytest.mark.parametrize(
    "size", [(63, 100, 37), (64, 304, 48), (7, 560, 400), (1, 2, 4), (100, 2, 4), (101, 2, 4)], ids=str
)
def test_float32_is_as_good_as_autograd_in_float32(size, shared, sgd) -> None:
    method = objective(size, 3, 2, sgd=sgd, shared=shared, exact=sgd, auto=sgd)
    double = start(method, size)
    single = tree_map(lambda t: t.float() if isinstance(t, Tensor) else t, double)
    exact = by_autograd(method, *double)[0]
    for name, value in exact.items():
        errors = [
            float((run(method, *single)[0][name].double() - value).abs().max() / value.abs().max())
            for run in (fused, by_autograd)
        ]
        assert errors[0] <= 3 * errors[1] + 1e-6, (name, errors)


@needs_native
@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, True)])
@pytest.mark.parametrize("size", [(7, 5, 4), (20, 3, 4)], ids=str)
def test_replicas_equal_single_runs(size, shared, sgd) -> None:
    method = objective(size, 2, 2, sgd=sgd, shared=shared, exact=False)
    seeds = torch.tensor([3, 4, 5])
    arguments = start(method, size, seeds)
    stacked = fused(method, *arguments)

    def gradient(*one: Any) -> Any:
        return fused(method, *one)

    with torch.no_grad():
        mapped = torch.vmap(gradient)(*arguments)
    assert_same(mapped, stacked, 0.0)
    for r in range(3):
        one = tree_map(lambda t, r=r: t[r], arguments)
        assert_same(tree_map(lambda t, r=r: t[r], stacked), fused(method, *one), 1e-13)
    two = torch.vmap(torch.vmap(gradient), in_dims=1)
    doubled = tree_map(lambda t: torch.stack([t, t], 1).movedim(0, 1).movedim(0, 1), arguments)
    with torch.no_grad():
        assert_same(tree_map(lambda t: t[1], two(*doubled)), stacked, 0.0)


@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, True)])
def test_replicas_of_the_reference_equal_single_runs(shared, sgd, monkeypatch) -> None:
    size = (7, 5, 4)
    method = objective(size, 2, 2, sgd=sgd, shared=shared, exact=sgd, auto=sgd)
    arguments = start(method, size, torch.tensor([3, 4, 5]))
    monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    stacked = fused(method, *arguments)
    for r in range(3):
        one = tree_map(lambda t, r=r: t[r], arguments)
        assert_same(tree_map(lambda t, r=r: t[r], stacked), fused(method, *one), 1e-12)


@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
@pytest.mark.parametrize("N", [0, 3])
def test_reference_says_what_its_unroll_keeps(N, sgd, monkeypatch) -> None:
    """The logits of every step and, for Adam, (g, m, v) of A and a."""
    size = B, D, H = (40, 41, 43)
    method = objective(size, N, 2, sgd=sgd, shared=True, exact=False)
    monkeypatch.setattr(grbm_bilevel, "_NATIVE", False)
    fused(method, *start(method, size))
    assert grbm_bilevel.reference.tape_bytes == 8 * N * (B * H + (0 if sgd else 3 * H * (D + 1)))


@needs_native
def test_memory_is_what_the_step_uses() -> None:
    """At (40, 41, 43) with N=3: Adam keeps (h', d delta/dl) and (g, m, v) of every step, the dual the first two."""
    size = B, D, H = (40, 41, 43)
    used = {}
    for sgd in (False, True):
        method = objective(size, 3, 2, sgd=sgd, shared=sgd, exact=False)
        fused(method, *start(method, size))
        used[sgd] = grbm_bilevel.memory()
    assert used[False][1] == 8 * 3 * (2 * B * H + 3 * (D * H + H))
    assert used[True][1] == 8 * 3 * 2 * B * H
    for scratch, tape in used.values():
        assert tape < scratch


@needs_native
def test_non_contiguous_inputs() -> None:
    size = (7, 5, 4)
    method = objective(size, 2, 2, sgd=False, shared=False, exact=False)
    arguments = start(method, size)
    strided = tree_map(lambda t: torch.stack([t, t], -1)[..., 0] if isinstance(t, Tensor) else t, arguments)
    assert not strided[1].is_contiguous()
    assert_same(fused(method, *strided), fused(method, *arguments), 0.0)


@needs_native
def test_inputs_are_not_changed_and_results_are_fresh() -> None:
    size = (7, 5, 4)
    for K in (0, 2):
        method = objective(size, 2, K, sgd=False, shared=True, exact=False)
        arguments = start(method, size)
        before = tree_map(torch.clone, arguments)
        _, moved, _ = fused(method, *arguments)
        tree_map(torch.testing.assert_close, arguments, before)
        moved.phi["net.0.weight"].zero_()
        tree_map(torch.testing.assert_close, arguments, before)


@needs_native
@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_update_without_vmap_equals_update(clip, replicated) -> None:
    size = (7, 5, 4)
    method = objective(size, 2, 2, sgd=True, shared=True, exact=False)
    state, v, noise, rates = start(method, size, torch.tensor([3, 4, 5]) if replicated else 3)
    state = state._replace(ema=tree_map(torch.clone, state.theta))
    update = Update(method, Adam(BETAS), clip, 0.9)
    step = fused_update_for(update)
    assert step is not None
    expected = (torch.vmap(update) if replicated else update)(state, v, noise, rates)
    got = step(state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), got, expected)
    kept, grbm_fused.runs_fused = grbm_fused.runs_fused, lambda *_: False
    try:
        again = step(state, v, noise, rates)
    finally:
        grbm_fused.runs_fused = kept
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), again, expected)
    in_place = fused_update_for(replace(update, in_place=True))
    assert in_place is not None
    spent, _ = in_place(state, v, noise, rates)
    tree_map(lambda a, b: torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12), spent, expected[0])
    assert all(spent.theta[k] is state.theta[k] and spent.ema[k] is state.ema[k] for k in state.theta)


def test_the_rule_names_what_has_a_fused_form() -> None:
    size = (7, 5, 4)
    method = objective(size, 1, 1, sgd=False, shared=True, exact=False)
    bism = method.estimator
    assert isinstance(bism, BilevelScore)
    assert fused_step_for(method) is bism
    assert fused_step_for(replace(method, loss=Ssm())) is None
    assert fused_update_for(Update(replace(method, loss=Ssm()), Adam())) is None
    assert fused_step_for(replace(method, estimator=bism.with_options(divergence=Kl(latent_samples=2)))) is None
    exact = bism.with_options(divergence=KlExact())
    assert fused_step_for(replace(method, estimator=exact)) is exact
    with pytest.raises(UserError, match="does not read --latent-samples; it is an option of"):
        recipe("checkerboard").replaced(divergence="kl-exact", latent_samples=2)

    class OtherDivergence(Kl):
        def __call__(self, *_: Any) -> Tensor:
            return torch.zeros(())

    class OtherUnroll(BilevelScore):
        unroll_optimizer = Adam((0.5, 0.9))

    for changed in (
        replace(bism, posterior=Bernoulli(5, 4, (3,))),
        bism.with_options(divergence=OtherDivergence()),
        bism.with_options(posterior=Exact()),
        OtherUnroll(bism.options, bism.energy, bism.posterior, bism.optimizer),
    ):
        assert fused_step_for(replace(method, estimator=changed)) is None, changed


@needs_native
def test_a_step_that_is_differentiated_stays_with_autograd() -> None:
    size = (7, 5, 4)
    method = objective(size, 1, 1, sgd=True, shared=True, exact=False)
    state, v, noise, rates = start(method, size)
    runs_fused = partial(grbm_fused.runs_fused, method.estimator)
    assert runs_fused(state, v, rates)
    assert not runs_fused(state, v.clone().requires_grad_(), rates)
    assert not runs_fused(state, v.to("meta"), rates)
    assert not runs_fused(state, v.float(), rates)

    def norm(rate: Tensor) -> Tensor:
        gradient, *_ = method.gradient(state, v, noise, rates | {"unroll": rate})
        return gradient["W"].square().sum()

    slope = torch.func.grad(norm)(rates["unroll"])
    near = [norm(rates["unroll"] + e) for e in (1e-6, -1e-6)]
    torch.testing.assert_close(slope, (near[0] - near[1]) / 2e-6, rtol=1e-5, atol=1e-9)


def test_without_the_native_library_the_reference_is_used(monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_NATIVE", "0")
    program = (
        "import torch; from tests.kernels.test_grbm_bilevel import *;"
        "m = objective((7, 5, 4), 2, 2, sgd=True, shared=True, exact=False); a = start(m, (7, 5, 4));"
        "assert grbm_fused.runs_fused(m.estimator, a[0], a[1], a[3]);"
        "assert [b.name for b in grbm_bilevel.backends() if b.serves] == ['reference'] * 2;"
        "print(float(fused(m, *a)[2]['loss']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    method = objective((7, 5, 4), 2, 2, sgd=True, shared=True, exact=False)
    expected = float(by_autograd(method, *start(method, (7, 5, 4)))[2]["loss"])
    assert abs(float(done.stdout) - expected) < 1e-9 * abs(expected)


@needs_native
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


@needs_native
@pytest.mark.parametrize(("N", "K"), [(0, 0), (0, 2), (1, 0), (3, 2)])
@pytest.mark.parametrize(("shared", "sgd"), [(False, False), (True, False), (False, True), (True, True)])
def test_flops_are_those_of_its_products(shared, sgd, N, K) -> None:
    """Counted from torch's own products, which sizes beyond the plain loops all are."""
    size = (40, 41, 43)
    B, D, H = size
    method = objective(size, N, K, sgd=sgd, shared=shared, exact=False)
    arguments = start(method, size)
    with FlopCounterMode(display=False) as counted:
        fused(method, *arguments)
    expected = grbm_bilevel.flops(B, D, H, K=K, N=N, shared=shared and K + N > 0, sgd=sgd)
    assert counted.get_total_flops() == expected
    with torch.profiler.profile(record_shapes=True) as profile:
        fused(method, *arguments)
    shapes = [event.input_shapes[1:3] for event in profile.events() if event.name == "aten::addmm_"]
    assert sum(2 * left[0] * left[1] * right[1] for left, right in shapes) == expected


def test_the_exact_kl_draws_only_the_noise_that_is_read() -> None:
    size = (7, 5, 4)
    exact, sampled = (objective(size, 2, 2, sgd=True, shared=True, exact=e) for e in (True, False))
    v = torch.zeros(7, 5)
    some, everything = (method.draw(Key(3, 1), v)["latent"] for method in (exact, sampled))
    assert len(some) == len(everything) == 5
    assert torch.equal(some[0], everything[0])
    assert all(one is some[0] for one in some)


@needs_native
@pytest.mark.parametrize("shared", [False, True], ids=["fresh", "shared"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
@pytest.mark.parametrize(("N", "K", "exact"), [(0, 2, False), (3, 2, False), (2, 0, True)])
def test_blocks_of_units_run_their_steps_by_themselves(sgd, shared, exact, N, K) -> None:
    """As autograd, which knows no blocks, at a size with three of them, the last one smaller."""
    size = (21, 700, 450)
    method = objective(size, N, K, sgd=sgd, shared=shared, exact=exact)
    arguments = start(method, size)
    arguments[-1]["unroll"] *= 0.01  # with so many visible units larger steps diverge, and rounding errors grow
    with torch.profiler.profile(record_shapes=True) as profile:
        by_blocks = fused(method, *arguments)
    widths = {event.input_shapes[0][1] for event in profile.events() if event.name == "aten::addmm_"}
    assert {160, 130} <= widths
    assert_same(by_blocks, by_autograd(method, *arguments), 1e-10)


@needs_native
@pytest.mark.parametrize("sgd", [False, True])
@pytest.mark.parametrize(("size", "seeds"), [((63, 100, 37), [1, 2, 3]), ((101, 130, 97), [1])])
def test_more_threads_change_nothing(size: tuple[int, int, int], seeds: list[int], sgd: bool) -> None:
    """A thread computes a replica, or some blocks of units."""
    method = objective(size, 2, 2, sgd=sgd, shared=False, exact=False)
    arguments = start(method, size, torch.tensor(seeds))
    one = fused(method, *arguments)
    torch.set_num_threads(2)
    try:
        assert_same(fused(method, *arguments), one, 1e-12)
    finally:
        torch.set_num_threads(1)
