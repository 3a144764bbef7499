"""A Newton step on q's outputs: the numerics of `newton.py`.

Shape tags: S samples of h in D, B batch, H latent units, E moved outputs (H, or 2H with the log std).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from eblvm.engine import autodiff
from eblvm.engine import nets as modules
from eblvm.engine.autodiff import inverse as inverses
from eblvm.engine.autodiff import mixed_precision
from eblvm.engine.errors import UserError
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.newton import Newton
    from eblvm.engine.nets import Bernoulli, Energy, Posterior

HeadOf = Callable[["Params", Any, "Tensor"], "Tensor"]  # (theta, f, h[..., B, H]) -> e[..., B]
INFO = ("response_slope", "response_slope_after", "response_step", "response_floored", "response_cut")
COLUMNS_AT_A_TIME = 16  # of a Hessian that is made by products: bounds its memory


class Moved(NamedTuple):
    """`p` is eta^(f, theta) at the features given, `respond(f)` the same as a function of f; both carry gradients of f
    and theta, of the orders that a score and its loss need. `info` has what is logged."""

    p: Any
    respond: Callable[[Any], Any]
    info: dict[str, Tensor]


@dataclass(frozen=True)
class Lower:
    """The expected energy under a Gaussian q, as far as the step needs it. Pure functions of (theta, f, eta, noise):
    `slope` gives d E_q[head] / deta [..., B, E] for eta of [..., B, H], `curvature` its Hessian [B, E, E] (none: by
    products of `slope`)."""

    slope: Callable[..., Tensor]
    curvature: Callable[..., Tensor] | None = None


def lower_level(energy: Energy, options: Newton) -> Lower:
    """By closed expectations if the energy's head has them, else by samples of h."""
    if not energy.has_expectations:
        return sampled(partial(_head, energy), options.response_block)

    def closed(derivative: str) -> Callable[..., Tensor]:
        return lambda theta, f, eta, noise: expected(energy.at(theta), derivative, f, eta, options.response_block)

    return Lower(closed("slope"), closed("curvature"))


def expected(energy: Energy, derivative: str, f: Any, eta: tuple[Tensor, Tensor], *how: str) -> Tensor:
    """Return a closed expectation of the head, or a derivative of it, in the precision of q's outputs."""
    with mixed_precision.full_precision(eta[0]):
        return energy.expected(derivative, f, *eta, *how)


def _head(energy: Energy, theta: Params, f: Any, h: Tensor) -> Tensor:
    return energy.at(theta).head(f, h)


def sampled(head: HeadOf, block: str = "mean") -> Lower:
    """d/d mean = mean_s grad_h head(f, h_s), d/d log std = mean_s std n_s grad_h head(f, h_s), h_s = mean + std n_s."""

    def slope(theta: Params, f: Any, eta: tuple[Tensor, Tensor], noise_SBH: Tensor) -> Tensor:
        mean, log_std = (t.unsqueeze(-3) for t in eta)
        spread = torch.exp(log_std) * noise_SBH
        slope, _ = autodiff.grad(lambda h: (head(theta, f, h).sum(), ()), mean + spread)
        if block == "mean":
            return slope.mean(-3)
        return torch.cat([slope.mean(-3), (spread * slope).mean(-3)], -1)

    return Lower(slope)


def antithetic(noise_SBH: Tensor) -> Tensor:
    """Pairs n, -n from the first half of S normal samples, each unit scaled so that its mean square over S is one:
    an energy quadratic in h, with independent units, then has its exact slope for every S."""
    half = noise_SBH[: len(noise_SBH) // 2]
    half = half / half.square().mean(0).sqrt().clamp_min(1e-3)
    return torch.cat([half, -half])


def best_response(
    options: Newton, energy: Energy, posterior: Posterior, theta: Params, f: Any, p: Any, noise_SBH: Tensor
) -> Moved:
    """eta^ at the features f [B, ...] and the outputs p of q; theta and f may carry gradients, p is held fixed.
    `noise_SBH` is standard normal, see `antithetic`; closed expectations and a Bernoulli q read none."""
    if isinstance(posterior, modules.Bernoulli):
        return _natural_step(partial(_head, energy), posterior, theta, f, p)
    if isinstance(posterior, modules.Gaussian):
        return newton_step(options, lower_level(energy, options), theta, f, p, noise_SBH)
    raise UserError(
        f"best response 'newton' got a posterior of type {type(posterior).__name__}, expected Gaussian or Bernoulli; "
        "use best response 'unroll'"
    )


def newton_step(
    options: Newton, lower: Lower, theta: Params, f: Any, eta: tuple[Tensor, Tensor], noise: Tensor
) -> Moved:
    """The step on a Gaussian q's (mean, log std), each [B, H]; see `Newton` for its units."""
    dtype = torch.promote_types(eta[0].dtype, torch.float32)
    point = autodiff.tree_map(lambda t: t.detach().to(dtype), tuple(eta))
    unit_BE = torch.exp(point[1])
    if options.response_block == "full":
        unit_BE = torch.cat([unit_BE, torch.full_like(unit_BE, math.sqrt(0.5))], -1)

    def slope(theta: Params, x: Any, point: tuple[Tensor, Tensor]) -> Tensor:
        """dD/deta in the units of q; the entropy's part is -1 for every log std."""
        found_BE = lower.slope(theta, x, point, noise).to(dtype)
        if options.response_block == "full":
            by_mean_BH, by_log_std_BH = found_BE.chunk(2, -1)
            found_BE = torch.cat([by_mean_BH, by_log_std_BH - 1], -1)
        return found_BE * unit_BE

    def moved(point: tuple[Tensor, Tensor], step_BE: Tensor) -> tuple[Tensor, Tensor]:
        step_BE = step_BE * unit_BE
        if options.response_block == "mean":
            return point[0] - step_BE, point[1]
        by_mean_BH, by_log_std_BH = step_BE.chunk(2, -1)
        return point[0] - by_mean_BH, point[1] - by_log_std_BH

    def within(step_BE: Tensor) -> Tensor:
        """Return the factors [B, 1] that keep steps in the trust region; zero for one that is not finite."""
        length_B1 = _length(step_BE)[:, None]
        return torch.where(length_B1.isfinite(), (options.trust / length_B1.clamp_min(1e-30)).clamp(max=1), 0)

    theta0, f0 = autodiff.detached((theta, f))
    with torch.no_grad():
        before_BE = slope(theta0, f0, point)
        inverse, step_BE, floored_B = _inverse(options, lower, (theta0, f0, point, noise, unit_BE), before_BE)
        travelled_BE, factor_B1 = torch.zeros_like(before_BE), torch.ones_like(before_BE[:, :1])
        for remaining in reversed(range(options.response_steps)):
            here_B1 = within(step_BE)
            step_BE = torch.where(here_B1 > 0, here_B1 * step_BE, 0)
            point, travelled_BE, factor_B1 = moved(point, step_BE), travelled_BE + step_BE, factor_B1.minimum(here_B1)
            if remaining:
                step_BE = inverse(slope(theta0, f0, point))

    slope_BE = slope(theta, f, point)
    last_BE = inverse(slope_BE)
    last_B1 = within(last_BE.detach())
    cut_B = (factor_B1.minimum(last_B1) < 1).to(dtype)

    def respond(x: Any) -> tuple[Tensor, Tensor]:
        return moved(point, last_B1 * inverse(slope(theta, x, point)))

    found = (_length(before_BE), _length(slope_BE.detach()), _length(travelled_BE), floored_B, cut_B)
    info = {name: found_B.mean() for name, found_B in zip(INFO, found, strict=True)}
    return Moved(moved(point, last_B1 * last_BE), respond, info)


def _length(x_BE: Tensor) -> Tensor:
    """Root mean square over the outputs [B]."""
    return x_BE.square().mean(-1).sqrt()


def _products(lower: Lower, block: str, columns: int, context: tuple[Any, ...]) -> Callable[[Tensor], Tensor]:
    """x [columns, B, E] -> (d^2 D / deta^2) x in the units of q, by reverse mode twice."""
    theta, f, (mean_BH, log_std_BH), noise, unit_BE = context

    def slope(point_CBE: Tensor) -> Tensor:
        eta = (point_CBE, log_std_BH) if block == "mean" else point_CBE.chunk(2, -1)
        return lower.slope(theta, f, eta, noise).to(unit_BE.dtype)

    point_BE = mean_BH if block == "mean" else torch.cat([mean_BH, log_std_BH], -1)
    _, pull = autodiff.vjp(slope, point_BE.expand(columns, *point_BE.shape))
    return lambda x_CBE: unit_BE * pull(unit_BE * x_CBE, keep=True)


def _hessian(lower: Lower, block: str, context: tuple[Any, ...]) -> Tensor:
    """d^2 D / deta^2 [B, E, E] in the units of q; the entropy has none in (mean, log std)."""
    *arguments, unit_BE = context
    if lower.curvature is not None:
        found_BEE = lower.curvature(*arguments).to(unit_BE.dtype)
        return unit_BE[:, None] * found_BEE * unit_BE[:, :, None]
    identity_EE = torch.eye(unit_BE.shape[-1], dtype=unit_BE.dtype, device=unit_BE.device)
    parts = identity_EE[:, None].expand(-1, *unit_BE.shape).split(COLUMNS_AT_A_TIME)
    return torch.cat([_products(lower, block, len(part), context)(part) for part in parts]).movedim(0, 1)


def _inverse(
    options: Newton, lower: Lower, context: tuple[Any, ...], slope_BE: Tensor
) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """(b [B, E] -> A b, A slope, fraction of raised curvatures [B]); A is a constant."""
    if options.solver == "dense":
        hessian_BEE = _hessian(lower, options.response_block, context)
        inverse_BEE, floored_B = inverses.floored_inverse(hessian_BEE, options.floor)

        def inverse(b_BE: Tensor) -> Tensor:
            with mixed_precision.full_precision(b_BE):
                return (inverse_BEE @ b_BE[:, :, None]).squeeze(-1)

        return inverse, inverse(slope_BE), floored_B
    if torch.compiler.is_compiling():
        raise UserError("best response 'newton' by cg cannot be compiled; remove --compile or use the dense solver")
    leaves, spec = autodiff.tree_flatten(context)

    def product_of(*leaves: Tensor) -> Callable[[Tensor], Tensor]:
        products = _products(lower, options.response_block, 1, autodiff.tree_unflatten(list(leaves), spec))
        return lambda x_BE: products(x_BE[None])[0]

    how = (options.floor, options.cg_iterations)
    step_BE, stopped_B = inverses.conjugate_gradients(product_of(*leaves), slope_BE, *how)
    return lambda b_BE: inverses.solve(product_of, b_BE, leaves, *how), step_BE, stopped_B


def _natural_step(head: HeadOf, posterior: Bernoulli, theta: Params, f: Any, logits_BH: Tensor) -> Moved:
    """The step on a Bernoulli q's logits l with A the inverse of q's Fisher information, 1 / sigmoid'(l).

    For an energy linear in every unit of h, D = sum sigmoid(l) l - softplus(l) + head(f, sigmoid(l)) and so
    l^ = l - A dD/dl = -d head(f, h)/dh at h = sigmoid(l): no division. Where the energy is linear in h as a whole (a
    GRBM: l^ = c + v W) it is the posterior itself.
    """
    fixed_BH = logits_BH.detach()

    def at(theta: Params, x: Any, logits_BH: Tensor) -> Tensor:
        slope_BH, _ = autodiff.grad(lambda h: (head(theta, x, h).sum(), ()), posterior.mean(logits_BH))
        return -slope_BH

    def respond(x: Any) -> Tensor:
        return at(theta, x, fixed_BH)

    def length(logits_BH: Tensor, moved_BH: Tensor) -> Tensor:
        """|A^(1/2) dD/dl|, root mean square over the units."""
        mean_BH = posterior.mean(logits_BH)
        return (mean_BH * (1 - mean_BH) * (logits_BH - moved_BH).square()).mean(-1).sqrt().mean()

    with torch.no_grad():
        theta_fixed, f_fixed = autodiff.detached((theta, f))
        best_BH = at(theta_fixed, f_fixed, fixed_BH)
        before, zero = length(fixed_BH, best_BH), fixed_BH.new_zeros(())
        after = length(best_BH, at(theta_fixed, f_fixed, best_BH))
    return Moved(respond(f), respond, dict(zip(INFO, (before, after, before, zero, zero), strict=True)))
