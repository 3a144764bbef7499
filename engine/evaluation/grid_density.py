"""Log-likelihood of a model of points, by a grid over the plane."""

import torch

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import EVAL_SEED
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.metrics.grid_likelihood import GridLikelihood, grid_log_likelihood, log_marginal_of
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.runs.saved import SavedRun
from eblvm.kernels.philox import Key


def grid_density(run: SavedRun, model: str) -> tuple[GridLikelihood, plots.Density]:
    """Log-likelihood of a model of points by a grid over the plane, and its density."""
    theta, phi, posterior = run.thetas(model)[0], run.phi(model), run.posterior
    assert isinstance(posterior, Gaussian)
    likelihood = grid_log_likelihood(run.energy, theta, run.dataset.test, posterior, phi)
    log_marginal = log_marginal_of(run.energy, theta, posterior, phi, Key(EVAL_SEED, 0))
    return likelihood, lambda v: torch.exp(log_marginal(v).value - likelihood.log_z)


def figures(run: SavedRun, model: str) -> Figures:
    """The figures of `grid_density`, and a picture."""
    likelihood, density = grid_density(run, model)
    title = f"{run.config.method.kind}, {likelihood.log_likelihood:.3f} nats"
    plots.density([(title, density)], run.dataset.train, run.folder / "density.png")
    return {
        "test_log_likelihood": likelihood.log_likelihood,
        "test_log_likelihood_error": likelihood.standard_error,
        "log_z": likelihood.log_z,
    }
