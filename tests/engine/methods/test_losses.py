"""Noise levels of MDSM, and sliced score matching as an unbiased estimate of the exact loss."""

import pytest
import torch
from torch.utils._pytree import tree_map

from eblvm.engine.autodiff.derivatives import grad, score_and_curvature
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.estimates import Batch, ScoreEstimate
from eblvm.engine.methods.exact import FreeEnergy
from eblvm.engine.methods.losses import mdsm
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.sm import Sm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import ADAM, drawn

B, D, H = 5, 4, 3


def surrogate(v: torch.Tensor, closed_form: bool) -> ScoreEstimate:
    energy = GRBM(D, H)
    theta = {k: p.double() for k, p in energy.initial(Key(1, 0)).items()}
    return ScoreEstimate(
        lambda x: -energy.at(theta).free_energy(x),
        lambda: energy.at(theta).score(v),
        (lambda: energy.at(theta).laplacian(v)) if closed_form else None,
    )


def unperturbed(v: torch.Tensor) -> Batch:
    return Sm().perturb(v, torch.zeros_like(v), {})


def test_mdsm_levels_follow_the_place_in_the_batch() -> None:
    v, level = torch.zeros(5, 2), torch.linspace(0, 1, 5)
    geometric = Mdsm((0.1, 1.6), "geometric", 0.1).perturb(v, torch.ones(5, 2), {"level": level})
    torch.testing.assert_close(geometric.sigma[:, 0], torch.tensor([0.1, 0.2, 0.4, 0.8, 1.6]))
    linear = Mdsm((0.05, 1.25), "linear", 0.1).perturb(v, torch.ones(5, 2), {"level": level})
    torch.testing.assert_close(linear.v[:, 1], torch.tensor([0.05, 0.35, 0.65, 0.95, 1.25]))


def test_noise_does_not_depend_on_how_a_batch_is_split() -> None:
    method, nets = ScoreMatching(FreeEnergy(), Mdsm((0.1, 1.0), "linear", 0.1)), Nets(GRBM(D, H))
    v = torch.zeros(6, D)
    whole = drawn(method, nets, Key(3, 5), v)
    parts = [drawn(method, nets, Key(3, 5), v[i : i + 3], first=i, total=6) for i in (0, 3)]
    assert torch.equal(whole["level"], torch.cat([p["level"] for p in parts]))
    assert torch.equal(whole["perturb"][0], torch.cat([p["perturb"][0] for p in parts]))


def test_sm_by_second_derivatives_equals_the_closed_form() -> None:
    v = philox.normal(Key(0, 0), 0, B, (D,), dtype=torch.float64)
    losses = [Sm()(surrogate(v, closed), unperturbed(v), {}) for closed in (False, True)]
    torch.testing.assert_close(*losses)


def test_ssm_over_all_sign_directions_is_exact() -> None:
    """The mean of u u^T over all 2^D sign vectors is the identity, so there SSM is SM to rounding."""
    v = philox.normal(Key(0, 0), 0, B, (D,), dtype=torch.float64)
    signs = torch.tensor([[1.0 if k >> d & 1 else -1.0 for d in range(D)] for k in range(2**D)], dtype=torch.float64)
    directions = signs.expand(B, -1, -1)
    sliced = Ssm()(surrogate(v, False), unperturbed(v), {"direction": directions})
    torch.testing.assert_close(sliced, Sm()(surrogate(v, True), unperturbed(v), {}))


def test_score_and_curvature_of_a_quadratic() -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    v = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    u = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    score, curvature = score_and_curvature(lambda x: -0.5 * torch.einsum("bi,ij,bj->b", x, matrix, x), v, u)
    torch.testing.assert_close(score, -v @ matrix)
    assert curvature.tolist() == [[-2.0, -7.0]]


def test_all_directions_share_one_pass_of_the_density() -> None:
    passes = []

    def log_density(x: torch.Tensor) -> torch.Tensor:
        passes.append(x)
        return -x.pow(4).sum(-1)

    v = philox.normal(Key(0, 0), 0, B, (D,), dtype=torch.float64)
    u = philox.normal(Key(0, 0), 1, 3 * B, (D,), dtype=torch.float64).view(3, B, D)
    score, curvature = score_and_curvature(log_density, v, u)
    assert len(passes) == 1
    torch.testing.assert_close(score, -4 * v.pow(3))
    torch.testing.assert_close(curvature, (-12 * v.square() * u.square()).sum(-1))


@pytest.mark.parametrize("M", [1, 3])
def test_score_and_curvature_in_both_dialects(M: int) -> None:
    """Gradients of theta through the generic form, by autograd and by torch.func, are those of the closed form."""
    energy = GRBM(D, H)
    theta = {k: p.double() for k, p in energy.initial(Key(1, 0)).items()}
    v = philox.normal(Key(0, 0), 0, B, (D,), dtype=torch.float64)
    u = philox.normal(Key(0, 0), 1, M * B, (D,), dtype=torch.float64).view(M, B, D)

    def generic(theta):
        score, curvature = score_and_curvature(lambda x: -energy.at(theta).free_energy(x), v, u)
        return (0.5 * score.square().sum(1) + curvature.mean(0)).mean()

    def closed(theta):
        half_square, curvature = energy.at(theta).sliced(v, u)
        return (half_square + curvature.mean(0)).mean()

    expected = torch.func.grad(closed)(theta)
    tree_map(torch.testing.assert_close, torch.func.grad(generic)(theta), expected)
    tree_map(torch.testing.assert_close, grad(lambda t: (generic(t), ()), theta)[0], expected)
    stacked = tree_map(lambda t: torch.stack([t, 2 * t]), theta)
    mapped = torch.vmap(torch.func.grad(generic))(stacked)
    tree_map(lambda a, e: torch.testing.assert_close(a[0], e), mapped, expected)


def test_ssm_on_a_grbm_takes_the_closed_form() -> None:
    method, nets = ScoreMatching(FreeEnergy(), Ssm(directions=2)), Nets(GRBM(D, H))
    v = philox.normal(Key(0, 0), 0, B, (D,))
    theta, noise = method.init(nets, Key(1, 0), v, ADAM).theta.params, drawn(method, nets, Key(1, 2), v)
    features, batch = method.features(nets, theta, v, {}), unperturbed(v)
    estimate = method.estimator.estimate(nets, theta, {}, features, batch, noise, {})
    assert estimate.sliced is not None
    generic = Ssm()(estimate._replace(sliced=None), batch, noise)
    torch.testing.assert_close(Ssm()(estimate, batch, noise), generic)


def test_positions_in_a_batch_are_kept_on_a_gpu() -> None:
    given = 7, torch.float64, torch.device("cpu")
    assert all(torch.equal(a, b) for a, b in zip(mdsm.kept_positions(*given), mdsm.positions(*given), strict=True))
    assert mdsm.kept_positions(*given)[0] is mdsm.kept_positions(*given)[0]
