"""`eblvm demo`: small EBLVMs trained on the CPU in about a minute, with a table and a picture."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from eblvm.engine.cli.parser import Parser
from eblvm.engine.errors import UserError

if TYPE_CHECKING:
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
    first, *others = runs
    print(f"{first} trains in a second process, beside the bars of the others.\n")
    with beside(runs[first], folders[first]) as process:
        for title in others:
            if not train(runs[title].replaced(validations=0), folders[title]):
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
def beside(config: Config, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`eblvm train` of this run in a process of its own, while the block does something else; then wait for it."""
    command = ["train", config.recipe, "--method", config.method.kind, "--steps", str(config.optimisation.steps)]
    command += ["--validations", "0", "--out", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "eblvm", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    except BaseException:
        process.terminate()  # it saves before it ends
        raise
    finally:
        _, said = process.communicate()
    if process.returncode:
        lines = said.strip().splitlines()
        raise UserError(f"{folder} was not trained: {lines[-1] if lines else f'exit code {process.returncode}'}")


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
