"""Figures of a GRBM: log-likelihoods, exact or bracketed by AIS, and the exact score matching loss."""

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.metrics.likelihood import LogZ, ais, exact_log_z, log_likelihood, reverse_ais
from eblvm.engine.evaluation.metrics.score_matching import score_matching_loss
from eblvm.engine.progress import progress
from eblvm.engine.sampling.gibbs import gibbs, uniform_start
from eblvm.engine.sampling.run_samples import GIBBS_SWEEPS
from eblvm.engine.training import replicas
from eblvm.engine.training.run import Run
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key

REVERSE_SEED = 2**42  # added to the run's: the chains back are not those forth


def rows(run: Run, model: str, chains: int, temperatures: int) -> list[dict[str, float]]:
    """log Z, log-likelihoods and score matching loss of every replica; of 2-D data a picture of the density.

    No chains: log Z by enumeration. Otherwise AIS forth bounds log Z from below, and AIS back, from samples of long
    chains, from above (in expectation, and as far as those chains have mixed): `..._reverse`.
    """
    found, panels = [], []
    for name, theta in zip(replicas.names(run.config.optimisation), run.thetas(model), strict=True):
        log_z = _forth(run, theta, chains, temperatures, name) if chains else exact_log_z(run.grbm, theta)
        row = {"log_z": log_z.value, "log_z_standard_error": log_z.standard_error}
        for split in ("valid", "test"):
            v = getattr(run.dataset, split)
            row[f"{split}_log_likelihood"] = log_likelihood(run.grbm, theta, v, log_z.value)
            row[f"{split}_fisher"] = score_matching_loss(run.grbm, theta, v)
        if chains:
            back = _back(run, theta, chains, temperatures, name)
            row |= {"log_z_reverse": back.value, "log_z_reverse_standard_error": back.standard_error}
            row["test_log_likelihood_reverse"] = row["test_log_likelihood"] + log_z.value - back.value
        found.append(row)
        panels.append((name, plots.grbm_density(run.grbm, theta, log_z.value)))
    if run.dataset.train.shape[1] == 2:
        plots.density(panels[:4], run.dataset.train, run.folder / "density.png")
    return found


def _forth(run: Run, theta: Params, chains: int, temperatures: int, name: str) -> LogZ:
    with progress(temperatures, f"AIS {name}", "temperature") as bar:
        return ais(
            run.grbm, theta, Key(run.config.optimisation.seed, 0), chains, temperatures, lambda _: bar.update() and None
        )


def _back(run: Run, theta: Params, chains: int, temperatures: int, name: str) -> LogZ:
    key = Key(run.config.optimisation.seed + REVERSE_SEED, 0)
    with progress(GIBBS_SWEEPS, f"Gibbs {name}", "sweep") as bar:
        start = uniform_start(key, chains, run.dataset.train)
        v, _ = gibbs(theta, key, start, GIBBS_SWEEPS, lambda count: bar.update(count) and None)
    with progress(temperatures, f"reverse AIS {name}", "temperature") as bar:
        return reverse_ais(run.grbm, theta, key, v, temperatures, lambda _: bar.update() and None)
