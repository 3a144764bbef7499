"""`eblvm demo`: small EBLVMs trained on the CPU in about a minute, with a table and a picture."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eblvm.engine.cli.parser import Parser
from eblvm.engine.errors import DivergedError, UserError, printable

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess
    from multiprocessing.queues import SimpleQueue

    from eblvm.engine.config import Config
    from eblvm.engine.evaluation.plots import Density
    from eblvm.engine.training.run import Run

EXAMPLES = ("eblvm demo", "eblvm demo --out runs/first")
BEST = 0.6931  # nats: log 2, the board's own density


def main(argv: list[str]) -> None:
    parser = Parser("demo", "Train small models in about a minute, with a table and a picture.", EXAMPLES)
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="folder of the runs and the picture")
    demo(Path(parser.parse(argv).out))


def demo(out: Path) -> None:
    """The BiSM paper's checkerboard at its settings: DSM and BiDSM on a GRBM, then BiDSM on a deep EBLVM."""
    from eblvm.engine import recipes
    from eblvm.engine.evaluation import plots
    from eblvm.engine.training.loop import train
    from eblvm.engine.training.run import Run

    print("A Gaussian RBM with 4 latent units learns a 2-D checkerboard. DSM uses its exact posterior p(h|v);")
    print("BiDSM learns q(h|v) at the lower level, and differentiates through N=5 of its steps. Then a deep EBLVM,")
    print("an MLP with 2 latent units, learns it by BiDSM: four binary units cannot draw its edges, a network can.")
    runs = {
        "DSM, GRBM": recipes.recipe("checkerboard", method="dsm"),
        "BiDSM, GRBM": recipes.recipe("checkerboard", method="bidsm"),
        "BiDSM, deep EBLVM": recipes.recipe("checkerboard", model="mlp", method="bidsm"),
    }
    folders = {title: out / f"{config.model.kind}-{config.method.kind}" for title, config in runs.items()}
    slowest = "BiDSM, GRBM"
    others = [(runs[title].replaced(validations=0), folders[title]) for title in runs if title != slowest]
    print(f"{slowest} takes longest: the others train in a second process, beside its bar.\n")
    with beside(others) as process:
        if not train(runs[slowest].replaced(validations=0), folders[slowest]):
            process.terminate()
            return
    panels, table = [], []
    for title, folder in folders.items():
        run = Run.open(folder)
        likelihood, density = exact_density(run)
        panels.append((f"{title}\n{likelihood:.3f} nats", density))
        table.append((title, likelihood))
    picture = out / "density.png"
    plots.density(panels, run.dataset.train, picture)
    print(f"\n{'model':18} exact test log-likelihood (nats; the best possible is {BEST:.3f})")
    for title, likelihood in table:
        print(f"{title:18} {likelihood:.4f}")
    print(f"\ndensities: {picture}   curves: tensorboard --logdir {out}")
    print(f"next: eblvm eval {folder}; eblvm train checkerboard --help")


@contextmanager
def beside(runs: list[tuple[Config, Path]]) -> Iterator[SpawnProcess]:
    """Train these in turn in a process of its own, while the block does something else; then wait for it."""
    context = multiprocessing.get_context("spawn")
    problems = context.SimpleQueue()
    process = context.Process(target=train_quietly, args=(runs, problems))
    process.start()
    try:
        yield process
    except BaseException:
        process.terminate()  # it saves before it ends
        raise
    finally:
        process.join()
    if not problems.empty():
        raise UserError(problems.get())
    if process.exitcode not in (0, -signal.SIGTERM):
        raise UserError(f"the second process ended with exit code {process.exitcode}; run the demo again")


def train_quietly(runs: list[tuple[Config, Path]], problems: SimpleQueue[str]) -> None:
    """Train until one is interrupted; what goes wrong is sent to whoever waits."""
    from eblvm.engine.progress import quietly
    from eblvm.engine.training.loop import train

    for config, folder in runs:
        try:
            with quietly():
                if not train(config, folder, say=lambda sentence: None):
                    return
        except (UserError, DivergedError, OSError) as error:
            problems.put(f"{folder} was not trained: {printable(error)}")
            return


def exact_density(run: Run) -> tuple[float, Density]:
    """The mean test log-likelihood of a run's last model, and its density: by enumeration of h, or by a grid."""
    from eblvm.engine.evaluation import plots
    from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood
    from eblvm.engine.evaluation.sections import grid_density

    if not run.is_grbm:
        found, density = grid_density(run, "last")
        return found.log_likelihood, density
    theta = run.thetas("last")[0]
    log_z = exact_log_z(run.grbm, theta).value
    return log_likelihood(run.grbm, theta, run.dataset.test, log_z), plots.grbm_density(run.grbm, theta, log_z)
