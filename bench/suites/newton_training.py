"""`python -m eblvm.bench.suites.newton_training NAME RUN...`: what a deep EBLVM reaches by each way to its gradient.

One row per run folder, a figure for each of its replicas, at the end of training: the upper loss and the lower level's
loss as logged, over the last tenth of the run; the spread of theta's gradient over draws of the noise on h at one
minibatch, relative to its mean; the exact test log-likelihood of points, by a grid; the accuracy of a linear SVM on
q's means where the data has labels. The table of docs/newton.md is made of the record.
"""

import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.pages.results import command
from eblvm.bench.tools import record
from eblvm.engine import tables
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics.features import svm_accuracy
from eblvm.engine.evaluation.metrics.grid_likelihood import grid_log_likelihood
from eblvm.engine.methods.bilevel import VariationalScore
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.methods.types import State
from eblvm.engine.methods.update import state_from
from eblvm.engine.models.energy import call
from eblvm.engine.models.posteriors import Gaussian
from eblvm.engine.optim.schedule import step_rates
from eblvm.engine.training import replicas
from eblvm.engine.training.log import read_rows
from eblvm.engine.training.run import Run
from eblvm.kernels.philox import Key

SCHEMA = "eblvm-newton-training/1"
DRAWS, FITTED = 16, 10_000
FIGURES = ("log_likelihood", "loss", "lower", "spread", "svm")


def row(folder: Path) -> dict[str, Any]:
    run = Run.open(folder)
    states = states_of(run)
    return {
        "command": command(run.config),
        **logged(run, len(states)),
        "log_likelihood": each(states, lambda s: log_likelihood(run, s)) if run.config.model.points else None,
        "spread": each(states, lambda s: spread(run, s)),
        "svm": each(states, lambda s: svm(run, s)) if run.dataset.train_labels is not None else None,
    }


def each(states: list[State], figure: Callable[[State], float]) -> list[float]:
    return [figure(state) for state in states]


def states_of(run: Run) -> list[State]:
    """The last state of every replica."""
    state = state_from(run.payload["state"], torch.device(run.config.running.device))
    if not run.config.replicated:
        return [state]
    return [replicas.pick(state, r) for r in range(len(replicas.names(run.config.optimisation)))]


def logged(run: Run, count: int) -> dict[str, list[float]]:
    """The mean of the last tenth of the lines of stats.jsonl."""
    rows = read_rows(run.folder / "stats.jsonl")
    rows = rows[-max(1, len(rows) // 10) :]

    def values(line: dict[str, Any], name: str) -> list[float]:
        found = line[name]
        return found if isinstance(found, list) else [found]

    return {
        name: [statistics.fmean(values(line, name)[r] for line in rows) for r in range(count)]
        for name in ("loss", "lower")
    }


def log_likelihood(run: Run, state: State) -> float:
    assert isinstance(run.posterior, Gaussian)
    return grid_log_likelihood(run.energy, state.theta, run.dataset.test, run.posterior, state.phi).log_likelihood


@torch.no_grad()
def spread(run: Run, state: State) -> float:
    """|deviation of one draw of the gradient| / |its mean|, over draws of the noise on h, at the q of the state."""
    objective, optimisation, method = run.update.objective, run.config.optimisation, run.config.method
    assert isinstance(objective, ScoreMatchingObjective)
    assert isinstance(objective.estimator, VariationalScore)
    objective = replace(objective, estimator=objective.estimator.with_options(K=0))
    v = run.dataset.floats(run.dataset.train[: optimisation.batch])
    rates = step_rates(replace(optimisation, replicas=1), 0, v, method.lower_lr, method.unroll_lr)
    found = []
    for step in range(DRAWS):
        noise = objective.draw(Key(0, step), v) | {"perturb": objective.draw(Key(0, 0), v)["perturb"]}
        gradient, *_ = objective.gradient(state, v, noise, rates)
        found.append(torch.cat([g.flatten() for g in gradient.values()]))
    draws = torch.stack(found)
    return float(draws.std(0).norm() / draws.mean(0).norm())


def svm(run: Run, state: State) -> float:
    data, posterior = run.dataset, run.posterior
    assert posterior is not None
    assert data.train_labels is not None
    assert data.test_labels is not None

    @torch.no_grad()
    def means(images: Tensor) -> Tensor:
        parts = images.split(500)
        return torch.cat([posterior.mean(call(posterior, state.phi, "params", data.floats(p))) for p in parts])

    train, test = means(data.train[:FITTED]), means(data.test)
    return svm_accuracy(train, data.train_labels[:FITTED], test, data.test_labels)


def format_table(rows: list[dict[str, Any]]) -> str:
    def figure(values: list[float] | None) -> str:
        return "-" if values is None else ", ".join(f"{x:.4g}" for x in values)

    return tables.markdown(
        ["command", *FIGURES], [[f"`{r['command']}`", *(figure(r[f]) for f in FIGURES)] for r in rows]
    )


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    try:
        if len(arguments) < 2:
            raise UserError("got no run folders, expected NAME RUN...; give a name and the folders of finished runs")
        name, *folders = arguments
        rows = [row(Path(folder)) for folder in folders]
        how = f"python -m eblvm.bench.suites.newton_training {name} RUN..."
        made = record.make(SCHEMA, f"newton-training-{name}", how, "cpu", {"draws": DRAWS, "rows": rows})
        print(format_table(rows))
        print(f"wrote {record.write(made, record.RECORDS).name}")
    except UserError as error:
        print(f"eblvm.bench.suites.newton_training: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
