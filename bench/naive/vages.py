"""VaGES as its formula reads: one gradient for every sample of h (Bao et al. 2021).

    ds/dtheta = mean_i d grad_v log p~(v, h_i)/dtheta + cov_i(grad_v log p~(v, h_i), grad_theta log p~(v, h_i))

The loss's cotangent, the second-order term and the covariance have samples of their own, as published. The energy is
recomputed for every step on q, every Langevin step and every term; within a term its samples share one pass.
Shape tags: L samples, B batch, H latent units.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from eblvm.bench.naive.bidsm import BiDsm
from eblvm.bench.naive.bimdsm import BiMdsm

Draw = Callable[[], tuple[Tensor, Any]]  # K times (eps, noise of h), then (eps, (noise of all samples, of every chain))


def combined(
    log_p: Callable[[Tensor, Tensor], Tensor],
    cotangent: Callable[[Tensor], Tensor],
    x: Tensor,
    h: Tensor,
    L: int,
    parameters: list[Tensor],
) -> list[Tensor]:
    """The estimate of theta's gradient at x from the samples h [3L, B, H]; `log_p(x, h)` gives [L, B]."""
    of_value, of_slope, of_covariance = h.split(L)
    x = x.requires_grad_()
    (score,) = torch.autograd.grad(log_p(x, of_value).mean(0).sum(), x)
    z = cotangent(score)

    log_p_LB = log_p(x, of_covariance)
    scores = torch.stack([torch.autograd.grad(log_p_LB[i].sum(), x, retain_graph=True)[0] for i in range(L)])
    w_LB = (z * (scores - scores.mean(0))).flatten(2).sum(2) / (L - 1)
    covariance = torch.autograd.grad((w_LB * log_p_LB).sum(), parameters, materialize_grads=True)

    (score,) = torch.autograd.grad(log_p(x, of_slope).mean(0).sum(), x, create_graph=True)
    second = torch.autograd.grad((z * score).sum(), parameters, materialize_grads=True)
    return [(a + b) / len(x) for a, b in zip(second, covariance, strict=True)]


def in_turn(lower: Draw, count: int, last: Draw) -> Draw:
    """`count` draws for the steps on q, then that of the samples."""
    draws = iter([lower] * count + [last])
    return lambda: next(draws)()


class VagesMdsm(BiMdsm):
    """theta by Adam on the multiscale denoising loss of a deep EBLVM; q by K real steps, its samples by C more."""

    def __init__(self, *arguments: Any, L: int, C: int, alpha: float, std: float, **how: Any):
        super().__init__(*arguments, **how, N=0)
        self.L, self.C, self.alpha, self.std = L, C, alpha, std

    def samples(self, x: Tensor, noise: Tensor, chains: list[Tensor]) -> Tensor:
        with torch.no_grad():
            h = self.sample(dict(self.posterior.named_parameters()), x, noise)
        self.model.requires_grad_(False)
        for z in chains:
            h = h.requires_grad_()
            (slope,) = torch.autograd.grad(-self.model(x, h).sum(), h)
            h = h.detach() + 0.5 * self.alpha * slope + self.std * z
        self.model.requires_grad_(True)
        return h.detach()

    def gradient(self, v: Tensor, draw: Draw) -> list[Tensor]:
        self.lower_steps(v, draw)
        eps, (noise, chains) = draw()
        x = v + self.sigma * eps
        return combined(
            lambda x, h: -self.model(x, h),
            lambda score: (score / self.sigma + eps / self.sigma0**2) / self.sigma,
            x,
            self.samples(x, noise, chains),
            self.L,
            list(self.model.parameters()),
        )

    def draw_fresh(self, v: Tensor) -> Draw:
        shape = (3 * self.L, len(v), self.latent)

        def last() -> tuple[Tensor, Any]:
            return torch.randn_like(v), (v.new_empty(shape).normal_(), list(v.new_empty(self.C, *shape).normal_()))

        return in_turn(super().draw_fresh(v), self.K, last)


class VagesDsm(BiDsm):
    """theta by Adam on the denoising loss of a GRBM, h in {0, 1}; q by K real steps."""

    def __init__(self, *arguments: Any, L: int, **how: Any):
        super().__init__(*arguments, **how, N=0)
        self.L = L

    def gradient(self, v: Tensor, draw: Draw) -> list[Tensor]:
        self.lower_steps(v, draw)
        eps, (noise, _) = draw()
        x = v + self.sigma * eps
        with torch.no_grad():
            h = (F.linear(x, *self.posterior.parameters()) + noise > 0).to(v.dtype)
        return combined(
            lambda x, h: -self.model.energy(x, h),
            lambda score: score + eps / self.sigma,
            x,
            h,
            self.L,
            list(self.model.parameters()),
        )

    def draw_fresh(self, v: Tensor) -> Draw:
        shape = (3 * self.L, len(v), self.posterior.out_features)

        def last() -> tuple[Tensor, Any]:
            return torch.randn_like(v), (v.new_empty(shape).uniform_().logit_(1e-6), [])

        return in_turn(super().draw_fresh(v), self.K, last)
