"""`eblvm sample`: draw samples of a run."""

from pathlib import Path

from eblvm.engine.cli.parser import Parser, at_least, write_json

EXAMPLES = ("eblvm sample runs/frey --count 100", "eblvm sample runs/mnist --kind interpolation")


def add_run(parser: Parser) -> None:
    """What every command on a finished run takes."""
    parser.add_argument("--model", help="best (by validation), last or ema")
    parser.add_argument("--data", help="where the data set is now, if it moved")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")


def main(argv: list[str]) -> None:
    parser = Parser("sample", "Samples of a run: DIR/samples.pt and DIR/samples.png.", EXAMPLES)
    parser.add_argument("dir", metavar="DIR", help="run folder")
    parser.add_argument("--count", type=int, default=100, help="samples")
    parser.add_argument("--steps", type=int, help="Gibbs sweeps (1000), or Langevin steps of a deep model (2700)")
    parser.add_argument("--kind", help="of a deep model: marginal, joint, given-h, conditional, interpolation")
    parser.add_argument(
        "--start", help="of Langevin chains: normal, 1/2 + N(0, 1), for images; or uniform over the data"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    add_run(parser)
    arguments = parser.parse(argv)
    at_least(arguments, count=1, seed=0, steps=0)

    from eblvm.engine.training.run_folder import read_config

    read_config(Path(arguments.dir))  # a folder that is no run is said before torch is imported

    import torch

    from eblvm.engine.evaluation import plots
    from eblvm.engine.sampling import run_samples
    from eblvm.engine.sampling.run_mixing import run_mixing
    from eblvm.engine.training import distributed
    from eblvm.engine.training.run import Run

    with distributed.joined(arguments.device):
        run = Run.open(Path(arguments.dir), arguments.data, arguments.device)
        model = arguments.model or run.default_model()
        how = (arguments.steps, arguments.seed, arguments.kind, arguments.start)
        v = run_samples.sample_over_ranks(run, model, arguments.count, *how)
        if not distributed.is_first():
            return
    name = "samples" if arguments.kind is None else f"samples-{arguments.kind}"
    torch.save(v, run.folder / f"{name}.pt")
    columns = -(-arguments.count // run_samples.CONDITIONS) if arguments.kind == "conditional" else 10
    plots.samples(v, run.image_shape, run.folder / f"{name}.png", columns)
    print(f"{len(v)} samples: {run.folder / name}.pt, {run.folder / name}.png")
    mixing = run_mixing(run, model, arguments.steps, arguments.seed)
    if mixing is not None:
        print(mixing.sentence)
        write_json(str(run.folder / f"{name}.json"), {"steps": arguments.steps, **mixing.facts()})
