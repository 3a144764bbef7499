"""`eblvm demo`: small EBLVMs trained on the CPU in about a minute, with a table and a picture."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from eblvm.engine import recipes
from eblvm.engine.cli.parser import Parser, print_next
from eblvm.engine.config import Config
from eblvm.engine.errors import DivergedError, UserError, printable
from eblvm.engine.progress import quietly

EXAMPLES = ("eblvm demo", "eblvm demo --out runs/first")
BEST = 0.6931  # nats: log 2, the board's own density
GRBM_STEPS = 50_000  # half of the paper's, whose other half adds 0.004 and 0.007 nats
WITHOUT_NATIVE = 10  # times fewer where the slow reference serves

Judged = tuple[float, list[float]]  # mean test log-likelihood, density at the points of the picture


def main(argv: list[str]) -> None:
    parser = Parser("demo", "Train small models in about a minute, with a table and a picture.", EXAMPLES)
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="folder of the runs and the picture")
    demo(Path(parser.parse(argv).out))


def demo(out: Path) -> None:
    """The BiSM paper's checkerboard with fewer steps: DSM and BiDSM on a GRBM, then BiDSM on a deep EBLVM."""
    from eblvm.engine.evaluation import plots
    from eblvm.engine.runs.saved import SavedRun
    from eblvm.engine.training.loop import train
    from eblvm.kernels.runtime import dispatch

    print("A Gaussian RBM with 4 latent units learns a 2-D checkerboard. DSM uses its exact posterior p(h|v);")
    print("BiDSM learns q(h|v) at the lower level, and differentiates through N=5 of its steps. Then a deep EBLVM,")
    print("an MLP with 2 latent units, learns it by BiDSM: four binary units cannot draw its edges, a network can.")
    steps = GRBM_STEPS
    if dispatch.notice():
        steps = GRBM_STEPS // WITHOUT_NATIVE
        print(f"Without native kernels the GRBMs take {steps:,} steps in the place of {GRBM_STEPS:,}.")
    runs = {
        "DSM, GRBM": recipes.recipe("checkerboard", method="dsm").replaced(steps=steps),
        "BiDSM, GRBM": recipes.recipe("checkerboard", method="bidsm").replaced(steps=steps),
        "BiDSM, deep EBLVM": recipes.recipe("checkerboard", model="mlp", method="bidsm"),
    }
    runs = {title: config.replaced(validations=0) for title, config in runs.items()}
    folders = {title: out / f"{config.model.kind}-{config.method.kind}" for title, config in runs.items()}
    deep = "BiDSM, deep EBLVM"
    print("The deep EBLVM trains beside the others, in a second process.\n")
    found = {}
    with beside(runs[deep], folders[deep]) as (process, result):
        for title in (title for title in runs if title != deep):
            if not train(runs[title], folders[title]):
                process.terminate()
                return
            found[title] = judged(folders[title])
        try:
            found[deep] = result()
        except EOFError:  # it was interrupted too, or has died, which is said behind this block
            return
    picture, data = out / "density.png", SavedRun.open(folders[deep]).dataset.train
    plots.density([panel(title, *found[title]) for title in runs], data, picture)
    print(f"\n{'model':18} exact test log-likelihood (nats; the best possible is {BEST:.3f})")
    for title in runs:
        print(f"{title:18} {found[title][0]:.4f}")
    print(f"\ndensities: {picture}   curves: tensorboard --logdir {out}")
    print_next(("eval", folders[deep]), ("train", "checkerboard", "--help"))


@contextmanager
def beside(config: Config, folder: Path) -> Iterator[tuple[SpawnProcess, Callable[[], Judged]]]:
    """Train and judge this in a process of its own, while the block does something else; then wait for it. The block is
    given the process, and a function that waits for its result."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=train_quietly, args=(config, folder, sender))
    process.start()
    sender.close()  # the process holds the other one: where it dies, waiting ends

    def result() -> Judged:
        found: Judged | str = receiver.recv()
        if isinstance(found, str):
            raise UserError(found)
        return found

    try:
        yield process, result
    except BaseException:
        process.terminate()  # it saves before it ends
        raise
    finally:
        process.join()
    if process.exitcode not in (0, -signal.SIGTERM):
        raise UserError(f"the second process ended with exit code {process.exitcode}; run the demo again")


def train_quietly(config: Config, folder: Path, sender: Connection) -> None:
    """Train, and send what `judged` finds, or what went wrong; nothing if interrupted."""
    from eblvm.engine.training.loop import train

    try:
        with quietly():
            if not train(config, folder, say=lambda sentence: None):
                return
        sender.send(judged(folder))
    except (UserError, DivergedError, OSError) as error:
        sender.send(f"{folder} was not trained: {printable(error)}")


def panel(title: str, likelihood: float, values: list[float]) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Compute what the picture shows of a model."""
    return f"{title}\n{likelihood:.3f} nats", lambda grid: torch.tensor(values)


def judged(folder: Path) -> Judged:
    """By enumeration of h, or by a grid, of a run's last model."""
    from eblvm.engine.evaluation import plots
    from eblvm.engine.evaluation.grid_density import grid_density
    from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood
    from eblvm.engine.runs.saved import SavedRun

    run = SavedRun.open(folder)
    if run.is_grbm:
        theta = run.thetas("last")[0]
        log_z = exact_log_z(run.grbm, theta).value
        likelihood = log_likelihood(run.grbm, theta, run.dataset.test, log_z)
        density = plots.grbm_density(run.grbm, theta, log_z)
    else:
        found, density = grid_density(run, "last")
        likelihood = found.log_likelihood
    grid, *_ = plots.density_grid(run.dataset.train.cpu().float())
    return likelihood, density(grid).tolist()
