"""Chains of a run by HMC or MALA: what they sample, how often they accept, and how far they have mixed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.errors import UserError, unknown
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.progress import progress
from eblvm.engine.runs.run import Run
from eblvm.engine.sampling.diagnostics import FEWEST_DRAWS, effective_sample_size, r_hat
from eblvm.engine.sampling.langevin import Position
from eblvm.engine.sampling.metropolis import Chains, LogDensity, hmc
from eblvm.engine.sampling.run_samples import default_start, latent_units, posterior_means, started, training_samples
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

KINDS = ("marginal", "joint", "given-h", "posterior")
SAMPLERS = ("mala", "hmc")


@dataclass(frozen=True)
class Proposals:
    """How a chain moves: its sampler, the step size of its leapfrog steps, and how many make a proposal."""

    sampler: str = "hmc"
    step_size: float = 0.02
    leapfrog: int = 10

    def check(self) -> None:
        if self.sampler not in SAMPLERS:
            raise unknown("sampler", self.sampler, list(SAMPLERS))
        if not self.step_size > 0 or not math.isfinite(self.step_size):
            raise UserError(f"got step-size={self.step_size}, expected a positive number")


def run_chains(
    run: Run,
    model: str,
    count: int,
    steps: int,
    seed: int,
    proposals: Proposals,
    kind: str | None = None,
    start: str | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """`count` chains at temperature 1 after `steps` proposals, and what is known of them.

    marginal: p(v) of a GRBM or a fully visible model. joint: p(v, h). given-h: p(v|h), h the posterior means of
    training data. posterior: p(h|v) of training data, from q's means; the samples are h [n, H]."""
    proposals.check()
    torch.set_num_threads(run.config.running.threads)
    log_density, x = target(run, model, count, seed, kind, start)
    with progress(steps, proposals.sampler.upper(), "proposal") as bar:
        leapfrog = 1 if proposals.sampler == "mala" else proposals.leapfrog
        chains = hmc(
            log_density, x, Key(seed, 0), steps, proposals.step_size, leapfrog, lambda _: bar.update() and None
        )
    return chains.x[0], asdict(proposals) | {"leapfrog": leapfrog, "steps": steps} | mixed(chains)


def target(
    run: Run, model: str, count: int, seed: int, kind: str | None, start: str | None
) -> tuple[LogDensity, Position]:
    """The log density that the chains keep, and where they start."""
    if run.config.model.generates:
        raise UserError("a generator samples in one pass and has no chains; remove --sampler")
    has_h = run.config.method.learns_q and not isinstance(run.energy, GRBM)
    kind = kind or ("given-h" if has_h else "marginal")
    known = KINDS[1:] if has_h else KINDS[:1]
    if kind not in known:
        raise UserError(f"this model has no chains of kind {kind!r}; use {' or '.join(known)}")
    energy: Any = run.energy.at(run.thetas(model)[0])
    key = Key(seed, 0)
    kwargs = {"dtype": getattr(torch, run.config.running.dtype), "device": torch.device(run.config.running.device)}
    if kind == "posterior":
        v = training_samples(run, count, seed)
        with torch.no_grad():
            f = energy.features(v)
        return lambda x: -energy.head(f, x[0]), (posterior_means(run, model, count, seed),)
    v = started(run, start or default_start(run), key, count, 0, kwargs)
    if kind == "marginal":
        return lambda x: -energy.free_energy(x[0]), (v,)
    if kind == "joint":
        h = philox.normal(key, purpose(Purpose.SAMPLE_H), count, (latent_units(run),), **kwargs)
        return lambda x: -energy.energy(*x), (v, h)
    h = posterior_means(run, model, count, seed)
    return lambda x: -energy.energy(x[0], h), (v,)


def mixed(chains: Chains) -> dict[str, float]:
    """Acceptance, and of log p~ over the second half of the chains R-hat and the effective sample size."""
    found = {"acceptance": float(chains.accepted.mean()), "acceptance_lowest": float(chains.accepted.min())}
    draws = chains.log_density[:, chains.log_density.shape[1] // 2 :]
    if draws.shape[1] >= FEWEST_DRAWS:
        found |= {"draws": draws.numel(), "r_hat": float(r_hat(draws)),
                  "effective_sample_size": float(effective_sample_size(draws))}  # fmt: skip
    return found


def sentence(facts: dict[str, Any]) -> str:
    """What `eblvm sample` says of the chains."""
    said = (
        f"{facts['sampler']}: acceptance {facts['acceptance']:.2f}, of the worst chain {facts['acceptance_lowest']:.2f}"
    )
    if "r_hat" not in facts:
        return said
    worth = f"{facts['effective_sample_size']:.0f} of {facts['draws']} draws are independent"
    return f"{said}; log p~ over the second half: R-hat {facts['r_hat']:.3f}, {worth}"
