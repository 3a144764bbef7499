"""`eblvm demo`: a small EBLVM trained on the CPU in about a minute, beside the exact method it approximates."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser

EXAMPLES = ("eblvm demo", "eblvm demo --out runs/first")


def main(argv: list[str]) -> None:
    parser = Parser("demo", "Train a small model in about a minute, with a table and a picture.", EXAMPLES)
    parser.add_argument("--out", metavar="DIR", default="runs/demo", help="folder of the runs and the picture")
    demo(Path(parser.parse(argv).out))


def demo(out: Path) -> None:
    """Checkerboard by DSM (which knows the posterior) and BiDSM (which learns it): a table and a density picture.

    Shortened by more noise than the recipe's: at 0.05 the target's variance hides the score, at 0.3 a minute is enough.
    """
    from eblvm.engine import recipes
    from eblvm.engine.evaluation import plots
    from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood
    from eblvm.engine.training.loop import train
    from eblvm.engine.training.run import Run

    short = recipes.checkerboard().replaced(steps=15_000, lr=(1e-2,), sigma=0.3, schedule="cosine")
    print("A Gaussian RBM with 4 latent units learns a 2-D checkerboard. DSM uses its exact posterior p(h|v);")
    print("BiDSM learns q(h|v) at the lower level, and differentiates through N=5 of its steps.\n")
    panels, table = [], []
    for method, title in (("dsm", "DSM"), ("bidsm", "BiDSM")):
        folder = out / method
        if not train(short.replaced(method=method), folder):
            return
        run = Run.open(folder)
        theta = run.thetas("last")[0]
        log_z = exact_log_z(run.grbm, theta).value
        likelihood = log_likelihood(run.grbm, theta, run.dataset.test, log_z)
        panels.append((f"{title}, {likelihood:.3f} nats", plots.grbm_density(run.grbm, theta, log_z)))
        table.append((method, likelihood))
    picture = out / "density.png"
    plots.density(panels, run.dataset.train, picture)
    print(f"\n{'method':8} exact test log-likelihood (nats)")
    for method, likelihood in table:
        print(f"{method:8} {likelihood:.4f}")
    print(f"\ndensities: {picture}   curves: tensorboard --logdir {out}")
