"""A trained model as evaluation sees it, whatever kind of model it is."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.importance_likelihood import LogDensity, importance_weighted
from eblvm.engine.nets.base import Energy, Net
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key

EVAL_SEED = 2**41  # evaluation noise is the same for every run
LATENT_SAMPLES = 100  # of h, where p(v) is not tractable


@dataclass(frozen=True)
class EvalModel:
    """One replica's model. v is a batch as the model sees it; what a model does not have is None."""

    name: str
    density: str  # of `log_density`, in words
    log_density: Callable[[Tensor, int], LogDensity]  # of (v, global index of its first sample), up to a constant
    posterior_mean: Callable[[Tensor], Tensor] | None = None
    reconstruct: Callable[[Tensor], Tensor] | None = None
    energy: Callable[[Tensor, Tensor], Tensor] | None = None  # E(v, h) [B]

    def of_all(self, method: str, run: SavedRun, v: Tensor) -> Any:
        """`method` on a whole split, a thousand at a time."""
        with torch.no_grad():
            return torch.cat([getattr(self, method)(run.dataset.floats(chunk)) for chunk in v.split(1000)])

    def log_densities(self, run: SavedRun, v: Tensor) -> LogDensity:
        """`log_density` of a whole split, a few hundred at a time."""
        step = 200
        densities = [self.log_density(run.dataset.floats(chunk), i * step) for i, chunk in enumerate(v.split(step))]
        return LogDensity(*(torch.cat(parts).cpu() for parts in zip(*densities, strict=True)))


def eval_models(run: SavedRun, model: str) -> list[EvalModel]:
    """The models of a run, one per replica."""
    names, thetas = run.config.optimisation.names(), run.thetas(model)
    if run.config.model.generates:
        return [_bidvl(run, model, names[0])]
    energy = run.energy
    for theta in thetas:
        expect_parameters(run, energy, theta)
    if isinstance(energy, GRBM):
        return [_grbm(name, energy, theta) for name, theta in zip(names, thetas, strict=True)]
    if run.config.replicated:
        raise UserError(f"{run.folder} has replicas; deep models are evaluated one run at a time")
    return [_deep(run, model, names[0], energy, thetas[0])]


def expect_parameters(run: SavedRun, model: Net, params: Params) -> None:
    """The checkpoint's parameters are those of the model that this version builds for this data set."""
    expected = {name: list(p.shape) for name, p in model.named_parameters()}
    got = {name: list(p.shape) for name, p in params.items()}
    if got.keys() != expected.keys():
        names = ", ".join(sorted(got.keys() ^ expected.keys())[:3])
        raise UserError(
            f"{run.folder} was written by another version: its parameters differ from this one's ({names}, ...); "
            "use that version"
        )
    for name, shape in expected.items():
        if got[name] != shape:
            raise UserError(
                f"{run.folder}: parameter {name} is {got[name]}, samples of shape {list(run.shape)} need {shape}; "
                "give --data the data set that the run was trained on"
            )


def _exact(marginal_energy: Callable[[Tensor], Tensor], v: Tensor, first: int) -> LogDensity:
    with torch.no_grad():
        value = -marginal_energy(v)
    return LogDensity(value, torch.zeros_like(value))


def _grbm(name: str, energy: GRBM, theta: Params) -> EvalModel:
    energy = energy.at(theta)

    def posterior_mean(v: Tensor) -> Tensor:
        return torch.sigmoid(energy.posterior_logits(v))

    def reconstruct(v: Tensor) -> Tensor:
        return energy.conditional_v(posterior_mean(v))[0]

    exact = partial(_exact, energy.free_energy)
    return EvalModel(name, "exact log p~(v) = -F(v)", exact, posterior_mean, reconstruct, energy.energy)


def _bidvl(run: SavedRun, model: str, name: str) -> EvalModel:
    """The energy is the marginal's own; the encoder's mean through the generator is the reconstruction."""
    method, nets, state = run.config.method, run.nets, run.state(model)
    log_density = partial(_exact, partial(method.marginal_energy, nets, state))
    mean, reconstruct = partial(method.encode, nets, state), partial(method.reconstruct, nets, state)
    return EvalModel(name, "exact log p~(v) = -E(v)", log_density, mean, reconstruct)


def _deep(run: SavedRun, model: str, name: str, energy: Energy, theta: Params) -> EvalModel:
    """The deep EBLVM's p(v|h) is a Markov chain, not a decoder: it reconstructs nothing."""
    phi = run.phi(model)
    if not phi:
        visible: Any = energy.at(theta)
        return EvalModel(name, "exact log p~(v) = -F(v)", partial(_exact, visible.free_energy))
    posterior = run.posterior
    assert posterior is not None
    expect_parameters(run, posterior, phi)
    q = posterior.at(phi)

    def log_density(v: Tensor, first: int) -> LogDensity:
        return importance_weighted(energy, theta, posterior, phi, v, Key(EVAL_SEED, 0), LATENT_SAMPLES, first)

    bound = f"lower bound on log p~(v), importance-weighted over {LATENT_SAMPLES} samples of h"
    return EvalModel(name, bound, log_density, lambda v: q.mean(q.params(v)), energy=energy.at(theta).energy)
