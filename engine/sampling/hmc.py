"""Hamiltonian Monte Carlo (Duane et al. 1987; Neal 2011) and MALA (Roberts & Tweedie 1996): chains that keep
p(x) ~ exp(log p~(x)) exactly, for x = (v,), (h,) or (v, h).

    p ~ N(0, I);  `leapfrog` times: p += e/2 s(x), x += e p, p += e/2 s(x);  accept with probability min(1, exp(-dH)),

s = grad log p~ and H = |p|^2/2 - log p~(x). One leapfrog step is MALA: the proposal x + e^2/2 s(x) + e z of Langevin
dynamics, with the rejections that make it exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import torch

from eblvm.engine.autodiff import derivatives
from eblvm.engine.errors import UserError
from eblvm.engine.options import option
from eblvm.engine.progress import progress
from eblvm.engine.sampling.base import MOST_STEPS, Sampler, Samples
from eblvm.engine.sampling.diagnostics import FEWEST_DRAWS, effective_sample_size, r_hat
from eblvm.engine.sampling.langevin import STEP_SIZE, Coordinates, normal_like
from eblvm.engine.sampling.starts import START_HELP, STARTS, posterior_means, random_h, started, training_samples
from eblvm.kernels import philox

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun

LogTarget: TypeAlias = "Callable[[Coordinates], torch.Tensor]"  # of chains [n], up to a constant
TARGETS = ("marginal", "joint", "given-h", "posterior")
ACCEPT = 2**15  # the stream that decides, beyond those of the parts' momenta


class MetropolisSampler(Sampler):
    """Exact chains at temperature 1; `leapfrog` is an option of HMC alone.

    marginal: p(v) of a GRBM or a fully visible model. joint: p(v, h). given-h: p(v|h), h the posterior means of
    training data. posterior: p(h|v) of training data, from q's means; the samples are h [n, H]."""

    divides = False
    leapfrog: ClassVar[int] = 1

    steps: int = option(1000, "proposals", low=0, high=MOST_STEPS)
    target: str | None = option(None, f"{', '.join(TARGETS)}; none: given-h, of a model without h marginal")
    start: str | None = option(None, START_HELP, choices=STARTS)
    step_size: float = option(STEP_SIZE, "of a leapfrog step", above=0)

    def suits(self, run: SavedRun) -> str:
        generates = run.config.model.generates
        return "a generator samples in one pass and has no chains; remove --sampler" if generates else ""

    @property
    def work(self) -> str:
        return f" of {self.steps} proposals of {self.leapfrog} gradients each"

    def draw(self, run: SavedRun, model: str, count: int, seed: int, first: int, total: int) -> Samples:
        log_density, x = self._density(run, model, count, seed, first)
        with progress(self.steps, self.kind.upper(), "proposal") as bar:
            settings = self.steps, self.step_size, self.leapfrog
            chains = hmc(log_density, x, philox.Key(seed, 0), *settings, lambda _: bar.update(), first)
        told = {"sampler": self.kind, "step_size": self.step_size, "leapfrog": self.leapfrog, "steps": self.steps}
        facts = told | mixed(chains)
        return Samples(chains.x[0], facts, sentence(facts))

    def _density(self, run: SavedRun, model: str, count: int, seed: int, first: int) -> tuple[LogTarget, Coordinates]:
        """The log density that the chains keep, and their start."""
        has_h = run.config.method.learns_q and not run.is_grbm
        target = self.target or ("given-h" if has_h else "marginal")
        known = TARGETS[1:] if has_h else TARGETS[:1]
        if target not in known:
            raise UserError(f"this model has no chains of kind {target!r}; use {' or '.join(known)}")
        energy: Any = run.energy.at(run.thetas(model)[0])
        key = philox.Key(seed, 0)
        if target == "posterior":
            with torch.no_grad():
                f = energy.features(training_samples(run, count, seed, first))
            return lambda x: -energy.head(f, x[0]), (posterior_means(run, model, count, seed, first),)
        v = started(run, self.start, key, count, first)
        if target == "marginal":
            return lambda x: -energy.free_energy(x[0]), (v,)
        if target == "joint":
            return lambda x: -energy.energy(*x), (v, random_h(run, key, count, first))
        h = posterior_means(run, model, count, seed, first)
        return lambda x: -energy.energy(x[0], h), (v,)


class Hmc(MetropolisSampler):
    kind = "hmc"

    leapfrog: int = option(10, "leapfrog steps of a proposal", low=1, high=10**6)  # type: ignore[misc]


class Mala(MetropolisSampler):
    kind = "mala"


class Chains(NamedTuple):
    x: Coordinates  # where the chains end
    accepted: torch.Tensor  # [n], the fraction of each chain's proposals
    log_density: torch.Tensor  # [n, steps], after every step


def hmc(
    log_density: LogTarget,
    x: Coordinates,
    key: philox.Key,
    steps: int,
    step_size: float,
    leapfrog: int = 10,
    on_step: Callable[[int], object] | None = None,
    first: int = 0,
) -> Chains:
    """`steps` proposals of chains first, first + 1, ...; proposal i uses the noise of step key.step + i."""
    with torch.no_grad():
        value, slope = value_and_slope(log_density, x)
        accepted, values = torch.zeros_like(value), []
        purpose = philox.purpose(philox.Purpose.LANGEVIN, ACCEPT)
        for i in range(steps):
            at = philox.Key(key.seed, key.step + i)
            momentum = tuple(normal_like(p, at, part, first) for part, p in enumerate(x))
            new_x, new_p, new_value, new_slope = x, momentum, value, slope
            for _ in range(leapfrog):
                half = _plus(new_p, new_slope, 0.5 * step_size)
                new_x = _plus(new_x, half, step_size)
                new_value, new_slope = value_and_slope(log_density, new_x)
                new_p = _plus(half, new_slope, 0.5 * step_size)
            gain = (new_value - _kinetic(new_p)) - (value - _kinetic(momentum))
            u = philox.uniform(at, purpose, len(gain), first=first, dtype=gain.dtype, device=gain.device)
            accept = torch.log(u) < gain  # False where the proposal's density is NaN
            x, slope = _chosen(accept, new_x, x), _chosen(accept, new_slope, slope)
            value = torch.where(accept, new_value, value)
            accepted += accept
            values.append(value)
            if on_step is not None:
                on_step(i)
        return Chains(x, accepted / max(steps, 1), torch.stack(values, 1) if values else value[:, None][:, :0])


def value_and_slope(log_density: LogTarget, x: Coordinates) -> tuple[torch.Tensor, Coordinates]:
    """log p~ [n] and its gradient for every part of x."""

    def total(y: Coordinates) -> tuple[torch.Tensor, torch.Tensor]:
        value = log_density(y)
        return value.sum(), value.detach()

    slope, value = derivatives.grad(total, x)
    return value, slope


def mixed(chains: Chains) -> dict[str, float]:
    """Acceptance, and of log p~ over the second half of the chains R-hat and the effective sample size."""
    facts = {"acceptance": float(chains.accepted.mean()), "acceptance_lowest": float(chains.accepted.min())}
    draws = chains.log_density[:, chains.log_density.shape[1] // 2 :]
    if draws.shape[1] >= FEWEST_DRAWS:
        facts |= {"draws": draws.numel(), "r_hat": float(r_hat(draws)),
                  "effective_sample_size": float(effective_sample_size(draws))}  # fmt: skip
    return facts


def sentence(facts: dict[str, Any]) -> str:
    """The facts of the chains in words."""
    rate, lowest = facts["acceptance"], facts["acceptance_lowest"]
    said = f"{facts['sampler']}: acceptance {rate:.2f}, of the worst chain {lowest:.2f}"
    if "r_hat" not in facts:
        return said
    worth = f"{facts['effective_sample_size']:.0f} of {facts['draws']} draws are independent"
    return f"{said}; log p~ over the second half: R-hat {facts['r_hat']:.3f}, {worth}"


def _chosen(accept: torch.Tensor, new: Coordinates, old: Coordinates) -> Coordinates:
    """`new` of the chains that accept, `old` of the others."""
    return tuple(torch.where(accept.view(-1, *[1] * (b.dim() - 1)), a, b) for a, b in zip(new, old, strict=True))


def _plus(x: Coordinates, y: Coordinates, factor: float) -> Coordinates:
    return tuple(a + factor * b for a, b in zip(x, y, strict=True))


def _kinetic(p: Coordinates) -> torch.Tensor:
    """|p|^2 / 2 over all parts, [n]."""
    return torch.stack([0.5 * part.flatten(1).square().sum(1) for part in p]).sum(0)
