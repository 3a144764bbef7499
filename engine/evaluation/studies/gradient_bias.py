"""The bias and the spread of BiSM's gradient against N and K, and of the Newton step beside them (Fig. 1 of BiSM).

    bias = |mean of g - g*| / |g*|,   spread = |deviation of one draw of g| / |g*|,   g* = dJ(theta, phi*)/dtheta

g is the gradient on one minibatch, its mean and deviation over draws of the noise on h. The gradient g* of the exact
marginal is known where h can be summed or integrated out: for a GRBM, and for an EBLVM of points with at most two
latent units, by the trapezoidal rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff.derivatives import grad
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.grid_likelihood import QUADRATURE_H, trapezoidal
from eblvm.engine.methods.base import Method, Nets, Noise, Rates, Rows, State
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.estimates import ScoreEstimate
from eblvm.engine.methods.newton import Newton, Unroll
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key

DRAWS = 16  # of the noise on h
LogMarginalAt = Callable[[Params, Tensor], Tensor]  # (theta, v [B, D]) -> log p~(v) [B]


@torch.no_grad()
def gradient_bias(
    method: Method, nets: Nets, state: State, v: Tensor, rates: Rates, Ns: Sequence[int], Ks: Sequence[int]
) -> dict[str, Any]:
    """{N, K, relative_bias and relative_spread [K][N], newton_bias and newton_spread [K]} on one minibatch. All cells
    have the same draws. The noise of the data is one for all of them: what spreads is the noise on h."""
    if not isinstance(method, ScoreMatching) or not isinstance(method.estimator, Bism):
        raise UserError("the gradient bias study is about bi-level methods; train with bidsm, bissm or bimdsm")
    bism, log_marginal = method.estimator, log_marginal_of(nets, state)

    def with_options(**changes: Any) -> ScoreMatching:
        return replace(method, estimator=replace(bism, **changes))

    def drawn(one: ScoreMatching, step: int) -> Noise:
        key = Key(0, step)
        return one.draw(nets, key, Rows.of(key, v))

    data = drawn(with_options(best_response=Unroll(), K=max(Ks), N=max(Ns)), 0)["perturb"][:1]

    def gradients(one: ScoreMatching) -> Tensor:
        every, gradient = [], one.gradient(nets)
        for step in range(DRAWS):
            noise = drawn(one, step)
            noise["perturb"] = data * len(noise["perturb"])
            every.append(_flat(gradient(state, v, noise, rates)[0]))
        return torch.stack(every)

    noise = drawn(with_options(best_response=Unroll(), K=0, N=0), 0) | {"perturb": data}
    target = _flat(exact_gradient(method, log_marginal, state, v, noise))

    def cell(**changes: Any) -> tuple[float, float]:
        every = gradients(with_options(**changes))
        bias, spread = (every.mean(0) - target).norm(), every.std(0).norm()
        return float(bias / target.norm()), float(spread / target.norm())

    unrolled = [[cell(best_response=Unroll(), K=K, N=N) for N in Ns] for K in Ks]
    newton = [cell(best_response=Newton(), K=K) for K in Ks]
    return {
        "N": list(Ns),
        "K": list(Ks),
        "relative_bias": [[bias for bias, _ in row] for row in unrolled],
        "relative_spread": [[spread for _, spread in row] for row in unrolled],
        "newton_bias": [bias for bias, _ in newton],
        "newton_spread": [spread for _, spread in newton],
    }


def exact_gradient(method: ScoreMatching, log_marginal: LogMarginalAt, state: State, v: Tensor, noise: Noise) -> Params:
    """Return theta's gradient of the loss at the score of the exact marginal."""
    batch = method.batches(v, noise)[-1]

    def upper(theta: Params) -> tuple[Tensor, tuple[()]]:
        def log_density(x: Tensor) -> Tensor:
            return log_marginal(theta, x)

        estimate = ScoreEstimate(log_density, lambda: grad(lambda x: (log_density(x).sum(), ()), batch.v)[0])
        return method.loss(estimate, batch, noise).mean(), ()

    return grad(upper, state.theta.params)[0]


def log_marginal_of(nets: Nets, state: State) -> LogMarginalAt:
    """Return log p~(v) with h summed or integrated out, or an error that says which models have it."""
    energy, posterior = nets.energy, nets.posterior
    if hasattr(energy, "free_energy"):
        return lambda theta, v: -energy.at(theta).free_energy(v)
    if isinstance(posterior, Gaussian) and posterior.latent <= QUADRATURE_H:
        phi = state.phi.params
        return lambda theta, v: trapezoidal(energy, theta, posterior, phi, v)
    raise UserError(
        f"the gradient bias study needs the exact marginal: a GRBM, or an EBLVM with at most {QUADRATURE_H} latent "
        f"units, got {type(energy).__name__} with {posterior.latent}; train 'checkerboard --model mlp' for it"
    )


def _flat(gradient: Params) -> Tensor:
    return torch.cat([g.flatten() for g in gradient.values()])
