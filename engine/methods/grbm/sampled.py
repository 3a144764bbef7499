"""VaGES and importance sampling on a GRBM in closed form: no autograd graph, and replicas without vmap.

With h binary, s_i = grad_v log p~(v, h_i) = W h_i - (v-b)/sigma^2 and grad_W log p~ = v h_i^T. Against a loss's
cotangent r on the score

    W: r^T hbar + v^T sum_i w_i h_i,   c: sum_i w_i h_i,   b: r/sigma^2,   log sigma: 2 r (v-b)/sigma^2,

w_i = <r W, h_i - hbar> / (L-1) for VaGES. Importance sampling has weights a_i ~ p~(v, h_i) / q(h_i|v) where VaGES has
1/L, and w_i = a_i <r W, h_i - hbar>. vages.py is the specification.
Shape tags: L samples, B batch, D visible, H latent units; leading axes are replicas.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from eblvm.engine.methods.bilevel import VariationalScore
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.ksd import Ksd
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.methods.vages import ImportanceScore, SampledScore, VagesScore
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.optimizers import Adam, AdamState
from eblvm.engine.types import Params
from eblvm.kernels import grbm_bilevel

WEIGHT, BIAS = "net.0.weight", "net.0.bias"


def sampled_gradient(
    estimator: SampledScore, loss: Dsm | Ksd, state: State, v_BD: Tensor, noise: Noise, rates: Rates
) -> tuple[Params, State, Info]:
    """What `ScoreMatching.gradient` gives, for a linear Bernoulli posterior."""
    theta = grbm_bilevel.Theta(**state.theta)
    W_DH, b_D, c_H, log_sigma_D = theta
    # Without noise the one perturbation, of size zero, may be anything.
    perturb, sigma = (noise["perturb"], loss.sigma) if isinstance(loss, Dsm) else ([v_BD], 0.0)
    state, info = lower_steps(estimator, state, theta, v_BD, perturb, sigma, noise, rates)

    v_BD = v_BD + sigma * perturb[-1] if sigma else v_BD
    A_HD, a_H = (W_DH.mT, c_H) if estimator.options.posterior.exact else (state.phi[WEIGHT], state.phi[BIAS])
    logits_BH = v_BD @ A_HD.mT + a_H.unsqueeze(-2)
    if isinstance(estimator, ImportanceScore) and estimator.uniform:
        logits_BH = torch.zeros_like(logits_BH)
    h_LBH = estimator.posterior.sample(logits_BH.unsqueeze(-3), noise["samples"])
    precision_D = torch.exp(-2 * log_sigma_D).unsqueeze(-2)
    away_BD = (v_BD - b_D.unsqueeze(-2)) * precision_D

    if isinstance(estimator, VagesScore):
        of_value, of_slope, of_covariance = h_LBH.chunk(3, -3) if estimator.independent else (h_LBH,) * 3
        mean_BH = of_value.mean(-3)
        score_BD = mean_BH @ W_DH.mT - away_BD
        if estimator.options.control_variate:
            score_BD = score_BD - (mean_BH - torch.sigmoid(logits_BH)) @ A_HD
        value, r_BD = cotangent(loss, v_BD, score_BD, perturb[-1])
        along_LB = ((r_BD @ W_DH).unsqueeze(-3) * of_covariance).sum(-1)
        count = estimator.options.L - (estimator.options.covariance == "unbiased")
        scale = 0.0 if estimator.options.covariance == "none" else 1 / count
        w_LB = scale * (along_LB - along_LB.mean(-2, keepdim=True))
        mean_BH = of_slope.mean(-3)
    else:
        x_BH, of_covariance = v_BD @ W_DH + c_H.unsqueeze(-2), h_LBH
        log_p_LB = (h_LBH * (x_BH - logits_BH).unsqueeze(-3)).sum(-1) + softplus(logits_BH).sum(-1).unsqueeze(-2)
        a_LB = torch.softmax(log_p_LB, -2)
        mean_BH = (a_LB.unsqueeze(-1) * h_LBH).sum(-3)
        value, r_BD = cotangent(loss, v_BD, mean_BH @ W_DH.mT - away_BD, perturb[-1])
        along_LB = ((r_BD @ W_DH).unsqueeze(-3) * h_LBH).sum(-1)
        w_LB = a_LB * (along_LB - (a_LB * along_LB).sum(-2, keepdim=True))

    back_BH = (w_LB.unsqueeze(-1) * of_covariance).sum(-3)
    return _gradient(v_BD, r_BD, mean_BH, back_BH, precision_D, away_BD), state, info | {"loss": value}


def exact_gradient(loss: Ksd, state: State, v_BD: Tensor) -> tuple[Params, State, Info]:
    """The same with the mean and the covariance of p(h|v) itself."""
    W_DH, b_D, c_H, log_sigma_D = grbm_bilevel.Theta(**state.theta)
    mean_BH = torch.sigmoid(v_BD @ W_DH + c_H.unsqueeze(-2))
    precision_D = torch.exp(-2 * log_sigma_D).unsqueeze(-2)
    away_BD = (v_BD - b_D.unsqueeze(-2)) * precision_D
    value, r_BD = cotangent(loss, v_BD, mean_BH @ W_DH.mT - away_BD, v_BD)
    back_BH = (r_BD @ W_DH) * mean_BH * (1 - mean_BH)
    return _gradient(v_BD, r_BD, mean_BH, back_BH, precision_D, away_BD), state, {"loss": value}


def _gradient(
    v_BD: Tensor, r_BD: Tensor, mean_BH: Tensor, back_BH: Tensor, precision_D: Tensor, away_BD: Tensor
) -> Params:
    return {
        "W": r_BD.mT @ mean_BH + v_BD.mT @ back_BH,
        "b": (r_BD * precision_D).sum(-2),
        "c": back_BH.sum(-2),
        "log_sigma": (2 * r_BD * away_BD).sum(-2),
    }


def lower_steps(
    estimator: VariationalScore,
    state: State,
    theta: grbm_bilevel.Theta,
    v_BD: Tensor,
    perturb: list[Tensor],
    sigma: float,
    noise: Noise,
    rates: Rates,
) -> tuple[State, Info]:
    """The K real steps on q, by `kernels/grbm_bilevel`."""
    if not estimator.options.K:
        return state, {}
    assert isinstance(estimator.posterior, Bernoulli)
    assert isinstance(estimator.optimizer, Adam)
    K = estimator.options.K
    exact = not estimator.options.divergence.reads_samples
    settings = grbm_bilevel.Settings(
        K=K, sigma=sigma, tau=estimator.posterior.temperature, exact=exact, rule=estimator.optimizer.rule
    )
    moved, lower = grbm_bilevel.lower_steps(
        v_BD,
        perturb if len(perturb) == 1 else perturb[:K],
        [] if exact else [latent.select(-3, 0) for latent in noise["latent"][:K]],
        theta,
        packed(state),
        rates["phi"],
        settings,
    )
    return unpacked(state, moved), {"lower": lower}


def packed(state: State) -> grbm_bilevel.Phi:
    """A linear posterior and its moments as the kernel takes them."""
    moments = state.phi_opt
    assert isinstance(moments, AdamState)
    pairs = [tree[name] for tree in (state.phi, moments.m, moments.v) for name in (WEIGHT, BIAS)]
    return grbm_bilevel.Phi._make([*pairs, moments.step_count])


def unpacked(state: State, moved: grbm_bilevel.Phi) -> State:
    """The state with the posterior that the kernel gives."""
    A, a, mA, ma, vA, va, step_count = moved
    phi_opt = AdamState({WEIGHT: mA, BIAS: ma}, {WEIGHT: vA, BIAS: va}, step_count)
    return state._replace(phi={WEIGHT: A, BIAS: a}, phi_opt=phi_opt)


def cotangent(loss: Dsm | Ksd, v_BD: Tensor, score_BD: Tensor, eps_BD: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, a mean over the batch, and its derivative by the score."""
    if isinstance(loss, Dsm):
        residual_BD = score_BD + eps_BD / loss.sigma
        return 0.5 * residual_BD.square().sum(-1).mean(-1), residual_BD / v_BD.shape[-2]
    (x, y), (s_x, s_y) = loss.halves(v_BD), loss.halves(score_BD)
    k, distance = loss.kernel(x, y)
    precision, pairs = loss.kernel_width**-2, k.shape[-1] ** 2
    # d/ds(v) = mean over v' of k (s(v') + (v - v')/w^2); d/ds(v') alike.
    r_x = (k @ (s_y - precision * y) + precision * x * k.sum(-1, keepdim=True)) / pairs
    r_y = (k.mT @ (s_x - precision * x) + precision * y * k.sum(-2).unsqueeze(-1)) / pairs
    # Linear in each half's scores: the value is what the two derivatives leave of the scores, and the trace.
    trace = (k * (precision * x.shape[-1] - precision**2 * distance)).sum((-2, -1)) / pairs
    value = (r_x * s_x).sum((-2, -1)) + precision * (s_y * (y * k.sum(-2).unsqueeze(-1) - k.mT @ x)).sum(
        (-2, -1)
    ) / pairs
    r_BD = torch.cat([r_x, r_y], -2)
    return value + trace, torch.cat([r_BD, torch.zeros_like(v_BD[..., r_BD.shape[-2] :, :])], -2)
