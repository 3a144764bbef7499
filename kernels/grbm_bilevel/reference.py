"""The bi-level step in closed form in torch: its products, `bernoulli_lower` and `adam_unroll`. README.md derives it.

On a GPU these are the vendor's matrix products and the Triton kernels. Shape tags: B batch, D visible, H latent;
leading axes are replicas. z are the posterior's logits, `x_bar` is the cotangent of x.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import Rule, lists_backend
from eblvm.kernels.bernoulli_lower import backend as lower_backend

tape_bytes = 0  # what the unroll of the last step kept for its reverse; `engine/planning` reads it


class Theta(NamedTuple):
    """The model: W [..., D, H], b [..., D], c [..., H], log_sigma [..., D]."""

    W: Tensor
    b: Tensor
    c: Tensor
    log_sigma: Tensor


class Phi(NamedTuple):
    """The posterior's logits are v A^T + a, A [..., H, D], a [..., H]; Adam's moments of both and its steps [...]."""

    A: Tensor
    a: Tensor
    m_weight: Tensor
    m_bias: Tensor
    v_weight: Tensor
    v_bias: Tensor
    step_count: Tensor


class Settings(NamedTuple):
    """The constants of a step: K real lower steps by Adam with `rule`, then N unrolled ones.

    The noise has the level `sigma`. The posterior's relaxed samples have the temperature `tau`, or with `exact` the
    lower level is the KL in closed form. Unrolled steps are Adam's, or with `sgd` plain ones; `auto_rate` is the plain
    step size 6 / lambda_max((V V^T + 1 1^T) / B) in the place of the one that is given.
    """

    K: int
    sigma: float
    tau: float
    exact: bool
    rule: Rule
    N: int = 0
    sgd: bool = False
    auto_rate: bool = False

    def real(self) -> "Settings":
        """Those of the K real steps alone."""
        return self._replace(N=0, sgd=False, auto_rate=False)


class Result(NamedTuple):
    """Of a step: theta's gradient, phi after the real steps, and both losses of every replica."""

    gradient: Theta
    phi: Phi
    loss: Tensor  # [...], the upper loss
    lower: Tensor  # [...], the lower loss of the last real step; zero if K = 0


class Lower(NamedTuple):
    """The lower level at fixed x: kl of the logits, and its derivatives."""

    tau: float

    def given(self, noise: Tensor | None) -> tuple[Tensor | None, None, int, int, int, float]:
        return noise, None, 0, 0, 0, self.tau

    def value(self, z: Tensor, x: Tensor, noise: Tensor | None) -> Tensor:
        return lower_backend(z).value(z, x, *self.given(noise))

    def delta(self, weight: Tensor, z: Tensor, x: Tensor, noise: Tensor | None) -> Tensor:
        """weight d kl/dz, for weights [..., B]."""
        return lower_backend(z).first(weight, z, x, *self.given(noise))[0]

    def pull(
        self, weight: Tensor, none: Tensor, delta_bar: Tensor, z: Tensor, x: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(z_bar, x_bar) = delta_bar (d delta/dz, d delta/dx); `none` is a zero of their shape."""
        _, z_bar, x_bar = lower_backend(z).second(weight, delta_bar, none, z, x, *self.given(noise))
        return z_bar, x_bar


def lower_steps(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    settings: Settings,
) -> tuple[Phi, Tensor]:
    """The real steps of `kernels.grbm_bilevel.lower_steps`, on any device."""
    batches = [v + settings.sigma * eps for eps in perturb] * (settings.K if len(perturb) == 1 else 1)
    return _real_steps(batches, latent, theta, phi, phi_rate, settings)


def _real_steps(
    batches: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    settings: Settings,
) -> tuple[Phi, Tensor]:
    """(phi after a step of Adam for each of the first K batches, the lower loss of the last step, zero without)."""
    W, b, c, log_sigma = theta
    lower, adam, precision = Lower(settings.tau), lists_backend(W), torch.exp(-2 * log_sigma).unsqueeze(-2)
    A, a, mA, ma, vA, va, step_count = phi
    loss = torch.zeros_like(phi_rate)
    for k in range(settings.K):
        V, noise = batches[k], None if settings.exact else latent[k]
        if k == 0 or V is not batches[k - 1]:
            x, weight = affine(V, W, c), V.new_full(V.shape[:-1], 1 / V.shape[-2])
        z = affine(V, A.mT, a)
        if k == settings.K - 1:
            quadratic = 0.5 * ((V - b.unsqueeze(-2)).square() * precision).sum(-1)
            loss = (lower.value(z, x, noise) + quadratic).mean(-1)
        delta = lower.delta(weight, z, x, noise)
        (A, a), (mA, ma), (vA, va), step_count = adam.steps(
            (A, a), (delta.mT @ V, delta.sum(-2)), (mA, ma), (vA, va), step_count, phi_rate, settings.rule
        )
    return Phi(A, a, mA, ma, vA, va, step_count), loss


def grbm_bilevel(
    v: Tensor,
    perturb: Sequence[Tensor],
    latent: Sequence[Tensor],
    theta: Theta,
    phi: Phi,
    phi_rate: Tensor,
    unroll_rate: Tensor,
    settings: Settings,
) -> Result:
    """The step of `kernels.grbm_bilevel.grbm_bilevel`, on any device."""
    K, sigma, tau, exact, rule, N, sgd, auto_rate = settings
    W, b, c, log_sigma = theta
    B, shared = v.shape[-2], len(perturb) == 1
    batches = [torch.add(v, eps, alpha=sigma) for eps in perturb] * (K + N + 1 if shared else 1)
    noises: Sequence[Tensor | None] = [None] * (K + N) if exact else latent
    V, eps = batches[-1], perturb[-1]
    unrolled = batches[K : K + min(N, len(perturb))]
    xs = [affine(batch, W, c) for batch in unrolled] * (N if shared else 1)
    lower, adam = Lower(tau), lists_backend(v)
    weight = v.new_full(v.shape[:-1], 1 / B)
    precision = torch.exp(-2 * log_sigma).unsqueeze(-2)

    moved, lower_loss = _real_steps(batches, latent, theta, phi, phi_rate, settings)
    A, a, mA, ma, vA, va, step_count = moved

    # N unrolled steps; the tape has what their reverse reads.
    rate = step_size(V) if auto_rate else unroll_rate
    logits, tape = [], []
    for n in range(K, K + N):
        z = affine(batches[n], A.mT, a)
        delta = lower.delta(weight, z, xs[n - K], noises[n])
        gradient = delta.mT @ batches[n], delta.sum(-2)
        logits.append(z)
        if sgd:
            A, a = A - axes(rate, 2) * gradient[0], a - axes(rate, 1) * gradient[1]
        else:
            tape.append((gradient, (mA, ma), (vA, va), step_count, rate, rule))
            (A, a), (mA, ma), (vA, va), step_count = adam.steps((A, a), *tape[-1])

    global tape_bytes
    tape_bytes = sum(t.nbytes for t in logits) + sum(t.nbytes for step in tape for pair in step[:3] for t in pair)

    # The upper level: h and phi_N are fixed for both v-derivatives.
    z = affine(V, A.mT, a)
    h, s = torch.sigmoid((z + latent[-1]) / tau), torch.sigmoid(z)
    away = (V - b.unsqueeze(-2)) * precision
    residual = h @ W.mT + (s - h) @ A - away + eps / sigma
    loss = 0.5 * residual.square().sum(-1).mean(-1)
    r = residual / B
    b_bar, log_sigma_bar = (r * precision).sum(-2), (2 * r * away).sum(-2)
    W_bar, c_bar = r.mT @ h, torch.zeros_like(c)
    if N == 0:
        return Result(Theta(W_bar, b_bar, c_bar, log_sigma_bar), moved, loss, lower_loss)

    # Its reverse into phi_N, then the steps, last one first.
    rA = r @ A.mT
    z_bar = (r @ W - rA) * h * (1 - h) / tau + rA * s * (1 - s)
    A_bar, a_bar = plus_product(z_bar.mT @ V, s - h, r), z_bar.sum(-2)
    m_bar, v_bar, none = None, None, torch.zeros_like(z)
    x_total: Tensor | None = None  # with one batch for all steps, whose product is computed once
    for n in reversed(range(N)):
        if sgd:
            A_grad_bar, a_grad_bar = -axes(rate, 2) * A_bar, -axes(rate, 1) * a_bar
        else:
            (A_grad_bar, a_grad_bar), m_bar, v_bar = adam.reverses((A_bar, a_bar), m_bar, v_bar, *tape[n])
        batch = batches[K + n]
        delta_bar = affine(batch, A_grad_bar.mT, a_grad_bar)
        z_bar, x_bar = lower.pull(weight, none, delta_bar, logits[n], xs[n], noises[K + n])
        if shared:
            x_total = x_bar if x_total is None else x_total.add_(x_bar)
        if not shared or n == 0:
            x_bar = x_bar if x_total is None else x_total
            W_bar, c_bar = plus_product(W_bar, batch, x_bar), plus_sum(c_bar, x_bar)
        if n:  # phi_0 is no function of theta
            A_bar, a_bar = plus_product(A_bar, z_bar, batch), plus_sum(a_bar, z_bar)
    return Result(Theta(W_bar, b_bar, c_bar, log_sigma_bar), moved, loss, lower_loss)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight + bias, for [..., B, I], [..., I, O] and [..., O]."""
    if x.dim() == 2:
        return torch.addmm(bias, x, weight)
    return x @ weight + bias.unsqueeze(-2)


def plus_product(total: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """total + x^T y, for [..., I, O], [..., B, I] and [..., B, O]."""
    return torch.addmm(total, x.mT, y) if x.dim() == 2 else total + x.mT @ y


def plus_sum(total: Tensor, x: Tensor) -> Tensor:
    """total + sum_B x, for [..., O] and [..., B, O]."""
    return total + x.sum(-2)


def axes(scalar: Tensor, number: int) -> Tensor:
    """A value per replica, to broadcast over `number` more axes."""
    return scalar.reshape(*scalar.shape, *[1] * number)


def step_size(V: Tensor, iterations: int = 16) -> Tensor:
    """6 / lambda_max((V V^T + 1 1^T) / B), by power iterations: the SGD step for a KL of curvature at most 1/4."""
    y = torch.ones_like(V[..., :1])
    for _ in range(iterations):
        y = y / torch.linalg.vector_norm(y, dim=-2, keepdim=True)
        y = (V @ (V.mT @ y) + y.sum(-2, keepdim=True)) / V.shape[-2]
    return 6 / torch.linalg.vector_norm(y, dim=-2).squeeze(-1)
