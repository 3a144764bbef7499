"""`eblvm bench newton-training --name NAME --runs RUN,..`: figures of deep EBLVMs by their way to the gradient.

One row per run folder, a figure for each of its replicas, at the end of training: the upper loss as logged, over the
last tenth of the run, and on test data with one estimate of the score for all runs, at q's best response, as the
methods' own estimates add different noise to their losses; the Fisher divergence between q and p(h|v) on test data; the
spread of theta's gradient over draws of the noise on h at one minibatch, relative to its mean; the exact test
log-likelihood of points, by a grid; where the data has labels, the accuracy of a linear SVM on the means of q and of
its best response. The table of docs/newton.md is made of the record.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.measurements.posterior_features import accuracy
from eblvm.bench.measurements.results import command as train_command
from eblvm.bench.tools import record
from eblvm.bench.tools.columns import Table
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.grid_likelihood import grid_log_likelihood
from eblvm.engine.methods.base import Nets, Rows, State, from_tree
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.lower_level import Fisher, Head, Kl, LowerLevel
from eblvm.engine.methods.newton import Newton
from eblvm.engine.methods.newton_step import antithetic, best_response
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.optim import replicas
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training.log import read_rows
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

SCHEMA = "eblvm-newton-training/1"
DRAWS, FITTED = 16, 5_000
JUDGED, AT_A_TIME = 2_000, 250
BEST = Newton(response_steps=3)  # from any q to p(h|v), in value
FIGURES = ("log_likelihood", "loss", "test_loss", "test_fisher_of_q", "spread", "svm", "svm_of_response")


def row(folder: Path) -> dict[str, Any]:
    run = SavedRun.open(folder)
    states, labelled = states_of(run), run.dataset.train_labels is not None
    return {
        "command": train_command(run.config),
        "loss": logged_loss(run, len(states)),
        "log_likelihood": each(states, lambda s: log_likelihood(run, s)) if run.config.model.points else None,
        "spread": each(states, lambda s: spread(run, s)),
        "test_loss": each(states, lambda s: test_loss(run, s)),
        "test_fisher_of_q": each(states, lambda s: test_fisher_of_q(run, s)),
        **{name: each(states, partial(svm, run, of=of)) if labelled else None for name, of in SVMS.items()},
    }


def each(states: list[State], figure: Callable[[State], float]) -> list[float]:
    return [figure(state) for state in states]


def states_of(run: SavedRun) -> list[State]:
    """The last state of every replica."""
    state = from_tree(run.payload["state"], torch.device(run.config.running.device))
    if not run.config.replicated:
        return [state]
    return [replicas.pick(state, r) for r in range(run.config.optimisation.count)]


def logged_loss(run: SavedRun, count: int) -> list[float]:
    """The mean of the last tenth of the lines of stats.jsonl."""
    rows = read_rows(run.folder / "stats.jsonl")
    losses = [row["loss"] for row in rows[-max(1, len(rows) // 10) :]]
    return [statistics.fmean(loss[r] if isinstance(loss, list) else loss for loss in losses) for r in range(count)]


def log_likelihood(run: SavedRun, state: State) -> float:
    assert isinstance(run.posterior, Gaussian)
    theta, phi = state.theta.params, state.phi.params
    return grid_log_likelihood(run.energy, theta, run.dataset.test, run.posterior, phi).log_likelihood


@torch.no_grad()
def spread(run: SavedRun, state: State) -> float:
    """|deviation of one draw of the gradient| / |its mean|, over draws of the noise on h, at the q of the state."""
    method, nets, optimisation = run.config.method, run.nets, run.config.optimisation
    assert isinstance(method, ScoreMatching)
    assert isinstance(method.estimator, LowerLevel)
    method = replace(method, estimator=replace(method.estimator, K=0))
    v = run.dataset.floats(run.dataset.train[: optimisation.batch])
    rates = replace(optimisation, replicas=1).rates(0, method.rates(), v)
    first = Rows.of(Key(0, 0), v)
    gradients = []
    for step in range(DRAWS):
        noise = method.draw(nets, Key(0, step), first) | {"perturb": method.draw(nets, Key(0, 0), first)["perturb"]}
        gradient, *_ = method.gradient(nets)(state, v, noise, rates)
        gradients.append(torch.cat([g.flatten() for g in gradient.values()]))
    draws = torch.stack(gradients)
    return float(draws.std(0).norm() / draws.mean(0).norm())


@torch.no_grad()
def test_loss(run: SavedRun, state: State) -> float:
    """The upper loss with the score at q's best response, which has no noise from h where the head has expectations."""
    method = run.config.method
    assert isinstance(method, ScoreMatching)
    method = replace(method, estimator=Bism(K=0, divergence=Kl(), best_response=BEST))
    nets = Nets(run.energy, posterior_of(run))
    images = run.dataset.test[:JUDGED].split(AT_A_TIME)
    losses = []
    for part, v in enumerate(map(run.dataset.floats, images)):
        key = Key(0, part)
        losses.append(float(method.validation(nets, state, v, method.draw(nets, key, Rows.of(key, v)))))
    return statistics.fmean(losses)


@torch.no_grad()
def test_fisher_of_q(run: SavedRun, state: State) -> float:
    """The Fisher divergence between q(h|v) and p(h|v) at test data, over 8 samples of h each."""
    posterior, divergences = posterior_of(run), []
    for part, v in enumerate(map(run.dataset.floats, run.dataset.test[:JUDGED].split(AT_A_TIME))):
        f, p = run.energy.at(state.theta.params).features(v), posterior.at(state.phi.params).params(v)
        noise = philox.normal(Key(0, part), 0, 8 * len(v), (posterior.latent,)).view(8, len(v), -1)
        divergences.append(float(Fisher()(Head(run.energy.at(state.theta.params), f), posterior, p, noise).mean()))
    return statistics.fmean(divergences)


def posterior_of(run: SavedRun) -> Gaussian:
    assert isinstance(run.posterior, Gaussian)
    return run.posterior


def means_of_q(run: SavedRun, state: State, v: Tensor) -> Tensor:
    return posterior_of(run).at(state.phi.params).params(v)[0]


def means_of_response(run: SavedRun, state: State, v: Tensor) -> Tensor:
    theta, q = state.theta.params, posterior_of(run)
    f, p = run.energy.at(theta).features(v), q.at(state.phi.params).params(v)
    noise = philox.normal(Key(0, 0), 0, len(v), (BEST.response_samples, p[0].shape[-1])).movedim(1, 0)
    return best_response(BEST, run.energy, q, theta, f, p, antithetic(noise)).p[0].detach()


SVMS = {"svm": means_of_q, "svm_of_response": means_of_response}


def svm(run: SavedRun, state: State, of: Callable[[SavedRun, State, Tensor], Tensor]) -> float:
    """Accuracy on features standardised on the training images, as the scale of h is arbitrary."""
    data = run.dataset
    assert data.train_labels is not None
    assert data.test_labels is not None
    with torch.no_grad():
        train, test = (
            torch.cat([of(run, state, data.floats(part)) for part in images.split(AT_A_TIME)])
            for images in (data.train[:FITTED], data.test[:JUDGED])
        )
    return accuracy(train, data.train_labels[:FITTED], test, data.test_labels[:JUDGED])


def table(result: dict[str, Any]) -> Table:
    def figure(values: list[float] | None) -> str:
        return "-" if values is None else ", ".join(f"{x:.4g}" for x in values)

    rows = [[f"`{row['command']}`", *(figure(row[f]) for f in FIGURES)] for row in result["rows"]]
    return ["command", *FIGURES], rows


def run(name: str, runs: Sequence[str | Path]) -> dict[str, Any]:
    if not name or not runs:
        raise UserError("'eblvm bench newton-training' needs a name and finished runs; give --name and --runs")
    torch.set_num_threads(1)
    rows = [row(Path(folder)) for folder in runs]
    command = f"eblvm bench newton-training --name {name} --runs RUN,.."
    return record.make(SCHEMA, f"newton-training-{name}", command, "cpu", {"draws": DRAWS, "rows": rows})
