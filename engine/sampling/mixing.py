"""The mixing of a GRBM's chains: those from different starts should end in one distribution.

Chains that agree with each other may all have missed the mode with the model's mass: those from noise or data
do, while those that were annealed reach it. So chains start at several places, and R-hat is between the starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eblvm.engine.nets import grbm
from eblvm.engine.sampling.annealing import Walk, resampled, tempered
from eblvm.engine.sampling.diagnostics import FEWEST_DRAWS, effective_sample_size, r_hat
from eblvm.engine.sampling.gibbs import gibbs
from eblvm.engine.types import Params
from eblvm.kernels import philox

MIXED = 1.05  # R-hat between starts below which they agree
DRAWS = 50  # of each chain, spread over the second half of its sweeps
DIRECTIONS = 7  # random ones of v that are compared, as the free energy is
FEWEST_SWEEPS = 2 * FEWEST_DRAWS
SEED_STEP = 2**44  # between the seeds of two starts: their chains have no noise in common


@dataclass(frozen=True)
class Mixing:
    """`r_hat` is the largest over statistics and `ess` the smallest; NaN where nothing can be said."""

    r_hat: float  # between the starts, all chains of one start together
    ess: float  # of the draws of all chains
    draws: int
    free_energy: dict[str, float]  # its mean, by start
    states: dict[str, torch.Tensor]  # where the chains ended, by start

    @property
    def problem(self) -> str | None:
        """The reason why these chains are no samples of the model; None where there is none."""
        if self.draws == 0:
            return f"fewer than {FEWEST_SWEEPS} sweeps are too few to see whether chains mix"
        if math.isnan(self.r_hat):
            return "the free energies of the chains are not finite, or never moved"
        if self.r_hat < MIXED:
            return None
        means = ", ".join(f"{value:.6g} from {name}" for name, value in self.free_energy.items())
        told = f"R-hat {self.r_hat:.3g}, expected below {MIXED}; mean free energy {means}"
        return f"chains from different starts have not mixed ({told})"

    @property
    def sentence(self) -> str:
        if self.problem is not None:
            return f"these samples may miss most of the model: {self.problem}"
        return f"R-hat {self.r_hat:.3f} between starts, effective sample size {self.ess:.0f} of {self.draws} draws"

    def figures(self) -> dict[str, float | str]:
        """R-hat and effective sample size, or why there are none, for tables and JSON."""
        if self.draws == 0 or math.isnan(self.r_hat) or math.isnan(self.ess):
            return dict.fromkeys(("r_hat", "ess"), f"not known: {self.problem}")
        return {"r_hat": self.r_hat, "ess": self.ess}

    def facts(self) -> dict[str, Any]:
        return {**self.figures(), "draws": self.draws, "free_energy": self.free_energy, "problem": self.problem}


def mixing(
    energy: grbm.GRBM,
    theta: Params,
    starts: Mapping[str, torch.Tensor],
    key: philox.Key,
    sweeps: int,
    on_sweeps: Callable[[int], None] | None = None,
) -> Mixing:
    """`sweeps` of Gibbs sampling from every start [chains, D], and how far their distributions agree."""
    with torch.no_grad():
        count = min(DRAWS, sweeps // 2) if sweeps >= FEWEST_SWEEPS else 0
        apart = sweeps // (2 * count) if count else 0
        directions = _directions(energy, theta)
        energy = energy.at(theta)
        states, draws = {}, {}
        for i, (name, v) in enumerate(starts.items()):
            here = philox.Key((key.seed + i * SEED_STEP) % 2**63, key.step)
            done = sweeps - count * apart
            v, _ = gibbs(theta, here, v, done, on_sweeps)
            seen = []
            for _ in range(count):
                v, _ = gibbs(theta, philox.Key(here.seed, here.step + done), v, apart, on_sweeps)
                done += apart
                free_energy = energy.free_energy(v)
                seen.append(torch.cat([free_energy[:, None], v @ directions], 1).double().cpu())
            states[name] = v
            if seen:
                draws[name] = torch.stack(seen, 1)  # [chains, draws, statistics]
        if not draws:
            return Mixing(math.nan, math.nan, 0, {}, states)
        everything = torch.cat(list(draws.values()))
        fewest = min(len(d) for d in draws.values())
        by_start = torch.stack([d[:fewest].transpose(0, 1).flatten(0, 1) for d in draws.values()])
        return Mixing(
            float(r_hat(by_start).max()),
            float(effective_sample_size(everything).min()),
            everything.shape[0] * everything.shape[1],
            {name: float(d[..., 0].mean()) for name, d in draws.items()},
            states,
        )


def several_starts(
    theta: Params, data: torch.Tensor, ends: Walk, key: philox.Key, chains: int, temperatures: int
) -> dict[str, torch.Tensor]:
    """Chains at the data, at the weighted ends of an annealed walk, and by a tempered transition from the data."""
    order = philox.permutation(key, philox.purpose(philox.Purpose.EVAL, 7), len(data)).to(data.device)
    at_data = data[order[torch.arange(chains, device=data.device) % len(data)]]
    annealing, tempering = resampled(ends, key, chains), tempered(theta, key, at_data, temperatures)
    return {"data": at_data, "annealing": annealing, "tempering": tempering}


def _directions(energy: grbm.GRBM, theta: Params) -> torch.Tensor:
    """Random signs / (sigma sqrt D) [D, DIRECTIONS]."""
    log_sigma = theta["log_sigma"]
    kwargs: dict[str, Any] = {"dtype": log_sigma.dtype, "device": log_sigma.device}
    purpose = philox.purpose(philox.Purpose.EVAL, 8)
    u = philox.uniform(philox.Key(0, 0), purpose, energy.visible, (DIRECTIONS,), **kwargs)
    return torch.sign(u - 0.5) * torch.exp(-log_sigma)[:, None] / energy.visible**0.5
