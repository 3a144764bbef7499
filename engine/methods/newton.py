"""The best response of q by a Newton step on its outputs: the whole implicit gradient (N = infinity) through the head.

The lower level separates over samples: D(eta; f, theta) reads q's outputs eta and the features f of one sample, never
q's weights. So take the best response of the outputs,

    eta^(f, theta) = eta1 - A dD/deta(eta1; f, theta),   A ~ (d^2 D / deta^2)^-1, eta1 and A held fixed.

In value it is a Newton step towards argmin D, in derivative the implicit function theorem. eta1 is params(v) after
`response_steps` such steps without a derivative. The estimate of the score is

    s = J^T d/df [-head(f, h) - log q(h; eta^(f, theta))]   at h ~ q(eta^) held fixed, J = df/dv:

one cotangent on f, and no derivative of q's network. D is the KL divergence, whatever the lower level minimises.
docs/newton.md has the derivation.

All of it is local to a sample, so several processes have nothing to reduce.
Shape tags: S samples of h in D, L of an estimate, B batch, H latent units, E moved outputs (H, or 2H with the log std).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.autodiff.inverse import conjugate_gradients, floored_inverse, full_precision, solve
from eblvm.engine.errors import UserError
from eblvm.engine.methods.responses import Newton
from eblvm.engine.nets.base import Energy, call
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian, Posterior
from eblvm.engine.types import Params

Head = Callable[[Params, Any, Tensor], Tensor]  # (theta, f, h[..., B, H]) -> e[..., B]
INFO = ("response_slope", "response_slope_after", "response_step", "response_floored", "response_cut")
COLUMNS_AT_A_TIME = 16  # of a Hessian that is made by products: bounds its memory


class BestResponse(NamedTuple):
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
        return lambda theta, f, eta, noise: _expected(energy, theta, derivative, f, eta, options.response_block)

    return Lower(closed("slope"), closed("curvature"))


def _expected(energy: Energy, theta: Params, derivative: str, f: Any, eta: tuple[Tensor, Tensor], *how: str) -> Tensor:
    with full_precision(eta[0]):
        return call(energy, theta, "expected", derivative, f, *eta, *how)


def _head(energy: Energy, theta: Params, f: Any, h: Tensor) -> Tensor:
    return call(energy, theta, "head", f, h)


def sampled(head: Head, block: str = "mean") -> Lower:
    """d/d mean = mean_s grad_h head(f, h_s), d/d log std = mean_s std n_s grad_h head(f, h_s), h_s = mean + std n_s."""

    def slope(theta: Params, f: Any, eta: tuple[Tensor, Tensor], noise_SBH: Tensor) -> Tensor:
        mean, log_std = (t.unsqueeze(-3) for t in eta)
        spread = torch.exp(log_std) * noise_SBH
        slope, _ = grad(lambda h: (head(theta, f, h).sum(), ()), mean + spread)
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
) -> BestResponse:
    """eta^ at the features f [B, ...] and the outputs p of q; theta and f may carry gradients, p is held fixed.

    `noise_SBH` is standard normal, see `antithetic`; closed expectations and a Bernoulli q read none.
    """
    if isinstance(posterior, Bernoulli):
        return _natural_step(partial(_head, energy), posterior, theta, f, p)
    if isinstance(posterior, Gaussian):
        return newton_step(options, lower_level(energy, options), theta, f, p, noise_SBH)
    raise UserError(
        f"best response 'newton' got a posterior of type {type(posterior).__name__}, expected Gaussian or Bernoulli; "
        "use best response 'unroll'"
    )


def newton_step(
    options: Newton, lower: Lower, theta: Params, f: Any, eta: tuple[Tensor, Tensor], noise: Tensor
) -> BestResponse:
    """The step on a Gaussian q's (mean, log std), each [B, H]; see `Newton` for its units."""
    dtype = torch.promote_types(eta[0].dtype, torch.float32)
    point = tree_map(lambda t: t.detach().to(dtype), tuple(eta))
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
        """What a step is multiplied by [B, 1] to stay in the trust region; zero for one that is not finite."""
        length_B1 = _length(step_BE)[:, None]
        return torch.where(length_B1.isfinite(), (options.trust / length_B1.clamp_min(1e-30)).clamp(max=1), 0)

    theta0, f0 = tree_map(Tensor.detach, (theta, f))
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
    return BestResponse(moved(point, last_B1 * last_BE), respond, info)


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
    _, pull = vjp(slope, point_BE.expand(columns, *point_BE.shape))
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
        inverse_BEE, floored_B = floored_inverse(_hessian(lower, options.response_block, context), options.floor)

        def inverse(b_BE: Tensor) -> Tensor:
            with full_precision(b_BE):
                return (inverse_BEE @ b_BE[:, :, None]).squeeze(-1)

        return inverse, inverse(slope_BE), floored_B
    if torch.compiler.is_compiling():
        raise UserError("best response 'newton' by cg cannot be compiled; remove --compile or use the dense solver")
    leaves, spec = tree_flatten(context)

    def product_of(*leaves: Tensor) -> Callable[[Tensor], Tensor]:
        products = _products(lower, options.response_block, 1, tree_unflatten(list(leaves), spec))
        return lambda x_BE: products(x_BE[None])[0]

    how = (options.floor, options.cg_iterations)
    step_BE, stopped_B = conjugate_gradients(product_of(*leaves), slope_BE, *how)
    return lambda b_BE: solve(product_of, b_BE, leaves, *how), step_BE, stopped_B


def _natural_step(head: Head, posterior: Bernoulli, theta: Params, f: Any, logits_BH: Tensor) -> BestResponse:
    """The step on a Bernoulli q's logits l with A the inverse of q's Fisher information, 1 / sigmoid'(l).

    For an energy linear in every unit of h, D = sum sigmoid(l) l - softplus(l) + head(f, sigmoid(l)) and so
    l^ = l - A dD/dl = -d head(f, h)/dh at h = sigmoid(l): no division. Where the energy is linear in h as a whole (a
    GRBM: l^ = c + v W) it is the posterior itself.
    """
    fixed_BH = logits_BH.detach()

    def at(theta: Params, x: Any, logits_BH: Tensor) -> Tensor:
        slope_BH, _ = grad(lambda h: (head(theta, x, h).sum(), ()), posterior.mean(logits_BH))
        return -slope_BH

    def respond(x: Any) -> Tensor:
        return at(theta, x, fixed_BH)

    def length(logits_BH: Tensor, moved_BH: Tensor) -> Tensor:
        """|A^(1/2) dD/dl|, root mean square over the units."""
        mean_BH = posterior.mean(logits_BH)
        return (mean_BH * (1 - mean_BH) * (logits_BH - moved_BH).square()).mean(-1).sqrt().mean()

    with torch.no_grad():
        theta_fixed, f_fixed = tree_map(Tensor.detach, (theta, f))
        best_BH = at(theta_fixed, f_fixed, fixed_BH)
        before, zero = length(fixed_BH, best_BH), fixed_BH.new_zeros(())
        after = length(best_BH, at(theta_fixed, f_fixed, best_BH))
    return BestResponse(respond(f), respond, dict(zip(INFO, (before, after, before, zero, zero), strict=True)))


def latents(options: Newton, posterior: Posterior, p: Any, noise_LBH: Tensor) -> Tensor:
    """The samples of h that a score is taken at: of each noise, and of its mirror image unless it is to be 'single'."""
    return posterior.rsample(p, noise_LBH if options.response_score == "single" else torch.cat([noise_LBH, -noise_LBH]))


def log_ratio(
    energy: Energy, posterior: Posterior, theta: Params, response: BestResponse, f: Any, h_LBH: Tensor
) -> Tensor:
    """mean_i log p~(v, h_i) - log q(h_i; eta^(f, theta)) [B], at fixed h: the log density of BiSM's estimate."""
    return (-call(energy, theta, "head", f, h_LBH) - posterior.log_prob(response.respond(f), h_LBH)).mean(0)


def cotangent(
    options: Newton,
    energy: Energy,
    posterior: Posterior,
    theta: Params,
    response: BestResponse,
    f: Any,
    noise_LBH: Tensor,
) -> Any:
    """u = d/df of `log_ratio` at fixed samples of q(eta^) made of the noise; the score is J^T u.

    u carries gradients of theta and f, those through h and eta^ included. The mean over q(eta^) of d/df log q is zero,
    so with score 'mean' u is -d E_q[head]/df, in closed form if the head has it, else over pairs. Over pairs the terms
    of log q cancel if only the mean of q moves, and are left out.
    """
    gaussian = isinstance(posterior, Gaussian)
    if options.response_score == "mean" and gaussian and energy.has_expectations:
        return -_expected(energy, theta, "pull", f, response.p)
    if options.response_score != "single" and gaussian and options.response_block == "mean":
        return vaes(energy, theta, f, latents(options, posterior, response.p, noise_LBH))
    p, pull = vjp(response.respond, f)
    h_LBH = latents(options, posterior, p, noise_LBH)
    by_p, _ = grad(lambda y: (posterior.log_prob(y, h_LBH).mean(0).sum(), ()), p)
    return tree_map(torch.sub, vaes(energy, theta, f, h_LBH), pull(by_p))


def vaes(energy: Energy, theta: Params, f: Any, h_LBH: Tensor) -> Any:
    """mean_i -d head(f, h_i)/df, whose J^T is VaES. With h_i = rsample(eta^, noise_i) its gradient goes through h and
    eta^: pathwise, where VaGES has a covariance.

    In a loss that squares the score the same samples in value and gradient leave a bias that falls as 1/L (of pairs:
    that of what is even in the noise).
    """
    return grad(lambda x: (-call(energy, theta, "head", x, h_LBH).mean(0).sum(), ()), f)[0]
