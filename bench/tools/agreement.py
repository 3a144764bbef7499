"""The correctness gate: engine and naive procedure give the same gradient for the same state, noise and semantics.

In fp64. Every `eblvm bench` run calls `check` before it times anything, and tests/bench/test_naive.py is the same call.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.steps import CaseStep, Naive, naive_method
from eblvm.bench.naive import BiDsm, VagesDsm
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.methods.bism import linear_step_size
from eblvm.engine.optim import replicas
from eblvm.engine.training.step import moved
from eblvm.engine.types import Params

TOLERANCE = 1e-9  # relative to the largest entry of each parameter's gradient


class AgreementError(Exception):
    """Engine and naive procedure compute different results: no speed may be reported."""


def check(case: Case) -> float:
    """The largest relative difference of the two gradients; `AgreementError` beyond TOLERANCE."""
    case = replace(case, config=case.config.replaced(dtype="float64", compile=False))
    engine = CaseStep(case)
    engine.state = under_way(engine.state)
    noise = engine.noise()
    gradients = {"engine": engine.gradient(noise)}
    if engine.fused:
        gradients["engine's fused step"] = engine.fused_gradient(noise)
    worst = 0.0
    for r in range(case.config.optimisation.replicas):
        one: Any = (lambda tree, r=r: replicas.pick(tree, r)) if case.config.replicated else (lambda tree: tree)
        expected = naive_gradient(case, one(engine.state), one(engine.v), one(noise))
        for who, gradient in gradients.items():
            for name, value in one(gradient).items():
                difference = float((value - expected[name]).abs().max())
                scale = float(expected[name].abs().max())
                error = difference / scale if scale else difference
                if not error <= TOLERANCE:
                    raise AgreementError(
                        f"{case.name}: gradient of {name} differs by {error:.1e} between {who} and naive procedure, "
                        f"expected at most {TOLERANCE:.0e}; no speed is reported"
                    )
                worst = max(worst, error)
    return worst


def under_way(state: State) -> State:
    """The state with Adam moments as in a run under way, where torch's Adam and the engine's agree to rounding:
    from zero moments they differ by the engine's `eps_root`."""
    params, moments, _ = state.phi
    if not params:
        return state
    filled = moments._replace(
        m={k: torch.full_like(p, 0.01) for k, p in params.items()},
        v={k: torch.full_like(p, 0.02) for k, p in params.items()},
        step_count=torch.full_like(moments.step_count, 3),
    )
    return state._replace(phi=state.phi._replace(moments=filled))


def naive_gradient(
    case: Case, state: State, v: Tensor, noise: Any, adapt: Callable[[Naive], None] = lambda method: None
) -> Params:
    """theta's gradient by the naive procedure, from the engine's state and the engine's noise. `adapt` may replace
    parts of the procedure."""
    method = naive_method(case, v)
    adapt(method)
    perturb = noise["perturb"]
    if isinstance(method, BiDsm):
        steps = len(noise["latent"])
        latents = [latent[:, 0] for latent in noise["latent"]]  # the sampled KL with one sample
        if isinstance(method, VagesDsm):
            latents[-1] = (noise["samples"].movedim(-2, -3), [z.movedim(-2, -3) for z in noise["langevin"]])
        pairs = iter(zip(perturb if len(perturb) > 1 else perturb * steps, latents, strict=True))
        if method.sgd_rate is not None and case.config["unroll_lr"] is None:
            method.sgd_rate = float(linear_step_size(v + method.sigma * perturb[-1]))
        load(method, state)
        gradients = method.gradient(v, lambda: next(pairs))
    else:
        load(method, state)
        gradients = method.gradient(v, lambda: perturb[0])
    names = [name for name, _ in method.model.named_parameters()]
    return dict(zip(names, gradients, strict=True))


@torch.no_grad()
def load(method: Naive, state: State) -> None:
    """Copy the engine's theta, phi and Adam moments of phi into the naive modules and optimiser."""
    for name, p in method.model.named_parameters():
        p.copy_(state.theta.params[name])
    if isinstance(method, BiDsm):
        params, moments, _ = state.phi
        for name, p in method.posterior.named_parameters():
            p.copy_(params[f"net.0.{name}"])
            method.lower_optimizer.state[p] = {
                "step": moments.step_count.float().clone(),
                "exp_avg": moments.m[f"net.0.{name}"].clone(),
                "exp_avg_sq": moments.v[f"net.0.{name}"].clone(),
            }


def check_compiled(engine: CaseStep) -> None:
    """Compare the compiled with the eager step: the same loss and gradient norm from the same state and noise, in
    fp32."""
    noise = engine.noise()
    _, compiled = engine.step(engine.state, engine.v, noise, engine.rates)
    optimizer = engine.config.optimisation.theta_optimizer()
    step = moved(engine.by_autograd, engine.nets, optimizer, in_place=False)
    _, eager = step(engine.state, engine.v, noise, engine.rates)
    for name in ("loss", "gradient_norm"):
        got, expected = compiled[name], eager[name]
        if not torch.allclose(got, expected, rtol=1e-3, atol=1e-5):
            raise AgreementError(
                f"compiled step: {name} is {got.tolist()}, the eager step's is {expected.tolist()}; no speed reported"
            )
