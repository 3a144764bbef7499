"""Figures of a GRBM: log-likelihoods, exact or bracketed by AIS, and the exact score matching loss."""

import math

import torch

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.figures import Figures, not_known
from eblvm.engine.evaluation.metrics import likelihood
from eblvm.engine.evaluation.metrics.bracket import Bracket, bracket, mode_bound
from eblvm.engine.progress import progress
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.annealing import annealed
from eblvm.engine.sampling.gibbs import SWEEPS
from eblvm.engine.sampling.mixing import Mixing, mixing, several_starts
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key

REVERSE_SEED = 2**42  # added to the run's: the chains back are not those forth
MODES = 10  # states of each start whose modes are looked at


def rows(run: SavedRun, model: str, chains: int, temperatures: int) -> list[Figures]:
    """log Z, log-likelihoods and score matching loss of every replica; of 2-D data a picture of the density.

    No chains: log Z by enumeration. Otherwise AIS forth bounds log Z from below, and AIS back from above where its
    chains are samples of the model: `..._reverse`. Otherwise log Z is not known; `..._bound` is still
    the bound of AIS forth and of single modes."""
    figures_of_replicas, panels = [], []
    for name, theta in zip(run.config.optimisation.names(), run.thetas(model), strict=True):
        row: Figures = {}
        if chains:
            known, chains_mixing = _bracket(run, theta, chains, temperatures, name)
            row |= {f"log_z_{k}": v for k, v in chains_mixing.figures().items()}
        else:
            known = Bracket(likelihood.exact_log_z(run.grbm, theta), None, None)
        row |= _log_z_figures(known)
        for split in ("valid", "test"):
            v = getattr(run.dataset, split)
            row |= _likelihood_figures(split, likelihood.log_likelihood(run.grbm, theta, v, known.lower.value), known)
            row[f"{split}_fisher"] = likelihood.score_matching_loss(run.grbm, theta, v)
        figures_of_replicas.append(row)
        title = name if known.reason is None else f"{name}, scale not known"
        panels.append((title, plots.grbm_density(run.grbm, theta, known.lower.value)))
    if run.dataset.train.shape[1] == 2:
        plots.density(panels[:4], run.dataset.train, run.folder / "density.png")
    return figures_of_replicas


def _log_z_figures(known: Bracket) -> Figures:
    lower, upper, reason = known
    if reason is not None:
        return {"log_z": not_known(reason), "log_z_bound": lower.value}
    figures: Figures = {"log_z": lower.value, "log_z_standard_error": lower.standard_error}
    if math.isfinite(lower.effective_chains):  # neither exact nor the bound of a mode
        figures["log_z_effective_chains"] = lower.effective_chains
    if upper is not None:
        figures |= {
            "log_z_reverse": upper.value,
            "log_z_reverse_standard_error": upper.standard_error,
            "log_z_reverse_effective_chains": upper.effective_chains,
        }
    return figures


def _likelihood_figures(split: str, highest: float, known: Bracket) -> Figures:
    """`highest` is the log-likelihood at the lower bound on log Z."""
    name = f"{split}_log_likelihood"
    if known.reason is not None:
        return {name: not_known(known.reason), f"{name}_bound": highest}
    if known.upper is None:
        return {name: highest}
    return {name: highest, f"{name}_reverse": highest + known.lower.value - known.upper.value}


@torch.no_grad()
def _bracket(run: SavedRun, theta: Params, chains: int, temperatures: int, name: str) -> tuple[Bracket, Mixing]:
    seed = run.config.optimisation.seed
    with progress(temperatures, f"AIS {name}", "temperature") as bar:
        ends = annealed(theta, Key(seed, 0), chains, temperatures, lambda _: bar.update() and None)
    forth, key = likelihood.ais_log_z(run.grbm, theta, ends), Key((seed + REVERSE_SEED) % 2**63, 0)
    starts = several_starts(theta, run.dataset.train, ends, key, max(2, chains // 3), temperatures)
    with progress(SWEEPS * len(starts), f"Gibbs {name}", "sweep") as bar:
        chains_mixing = mixing(run.grbm, theta, starts, key, SWEEPS, lambda count: bar.update(count) and None)
    mode = mode_bound(theta, torch.cat([v[:MODES] for v in (*starts.values(), *chains_mixing.states.values())]))
    if chains_mixing.problem is not None:  # then AIS back would be no bound
        return bracket(forth, mode, None, chains_mixing), chains_mixing
    with progress(temperatures, f"reverse AIS {name}", "temperature") as bar:
        v = torch.cat(list(chains_mixing.states.values()))
        back = likelihood.reverse_ais(run.grbm, theta, key, v, temperatures, lambda _: bar.update() and None)
    return bracket(forth, mode, back, chains_mixing), chains_mixing
