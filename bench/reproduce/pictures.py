"""Pictures of all runs of an experiment: densities of checkerboard GRBMs, and their log-likelihood over training."""

from dataclasses import replace
from pathlib import Path

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood
from eblvm.engine.plotting import save, styled, subplots
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.saved import SavedRun

TEST = 2000  # samples of the curves

Curve = list[tuple[int, float]]


def curve(run: SavedRun) -> tuple[Curve, plots.Density]:
    """Mean log-likelihood of the replicas at every kept checkpoint, and the density of the first one at the end."""
    points = []
    for step in sorted(checkpoint.steps(run.folder / "checkpoints")):
        thetas = replace(run, payload=checkpoint.read(checkpoint.path_of(run.folder / "checkpoints", step))).thetas(
            "last"
        )
        normalisers = [exact_log_z(run.grbm, theta).value for theta in thetas]
        pairs = zip(thetas, normalisers, strict=True)
        found = [log_likelihood(run.grbm, theta, run.dataset.test[:TEST], z) for theta, z in pairs]
        points.append((step, sum(found) / len(found)))
    return points, plots.grbm_density(run.grbm, thetas[0], normalisers[0])


@styled
def checkerboard(folders: dict[str, Path], out: Path) -> dict[str, Curve]:
    """Draw OUT/densities.png and OUT/curves.png of the runs, by their labels; the curves."""
    runs = {label: SavedRun.open(folder) for label, folder in folders.items()}
    found = {label: curve(run) for label, run in runs.items()}
    panels = [(label, density) for label, (_, density) in found.items()]
    plots.density(panels, next(iter(runs.values())).dataset.train, out / "densities.png")
    figure, axes = subplots(figsize=(7, 4.2))
    for label, (points, _) in found.items():
        axes.plot(*zip(*points, strict=True), label=label)
    axes.set(xlabel="steps", ylabel="test log-likelihood (nats), mean over seeds")
    axes.legend(fontsize=8, ncols=2)
    axes.grid(alpha=0.3)
    save(figure, out / "curves.png")
    return {label: points for label, (points, _) in found.items()}
