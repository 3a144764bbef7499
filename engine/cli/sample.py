"""`eblvm sample`: draw samples of a run."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eblvm.engine.cli.parser import Parser, at_least, at_most, write_json
from eblvm.engine.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.runs.run import SavedRun

EXAMPLES = (
    "eblvm sample runs/frey --count 100",
    "eblvm sample runs/mnist --kind interpolation",
    "eblvm sample runs/mnist --kind inpainting --known left",
    "eblvm sample runs/mnist --sampler hmc --kind posterior --steps 500 --step-size 0.1",
)


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
    parser.add_argument(
        "--kind", help="of a deep model: marginal, joint, given-h, conditional, interpolation, inpainting; posterior"
    )
    parser.add_argument("--sampler", help="exact chains at temperature 1 in place of the model's own: hmc or mala")
    parser.add_argument("--step-size", type=float, default=0.02, help="of hmc and mala")
    parser.add_argument("--leapfrog", type=int, default=10, help="steps of a proposal of hmc")
    parser.add_argument("--known", default="top", help="half that inpainting sees: top, bottom, left, right")
    parser.add_argument("--png", metavar="DIR", help="also write every image as a file of its own")
    parser.add_argument(
        "--start", help="of Langevin chains: normal, 1/2 + N(0, 1), for images; or uniform over the data"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    add_run(parser)
    arguments = parser.parse(argv)
    at_least(arguments, count=1, seed=0, steps=0, leapfrog=1)
    at_most(arguments, count=10**7, seed=2**62, steps=10**9, leapfrog=10**6)

    from eblvm.engine.runs.folder import read_config

    read_config(Path(arguments.dir))  # a folder that is no run is said before torch is imported

    import torch

    from eblvm.engine.durable import write_atomic
    from eblvm.engine.evaluation import plots
    from eblvm.engine.evaluation.image_sets import as_images, write_images
    from eblvm.engine.runs.run import SavedRun
    from eblvm.engine.sampling import run_chains, run_samples
    from eblvm.engine.sampling.run_mixing import run_mixing
    from eblvm.engine.training import distributed

    with distributed.joined(arguments.device):
        run = SavedRun.open(Path(arguments.dir), arguments.data, arguments.device)
        model = arguments.model or run.default_model()
        v, chains = drawn(run, model, arguments)
        if not distributed.is_first():
            return
    name = "samples" if arguments.kind is None else f"samples-{arguments.kind}"
    buffer = io.BytesIO()
    torch.save(v, buffer)
    write_atomic(run.folder / f"{name}.pt", buffer.getvalue())
    columns = -(-arguments.count // run_samples.CONDITIONS) if arguments.kind == "conditional" else 10
    plots.samples(v, run.image_shape if arguments.kind != "posterior" else None, run.folder / f"{name}.png", columns)
    print(f"{len(v)} samples: {run.folder / name}.pt, {run.folder / name}.png")
    if arguments.png is not None:
        if run.image_shape is None and v.dim() != 4:
            raise UserError(f"got --png {arguments.png}, but these samples are no images; remove it")
        write_images(as_images(v, run.image_shape), Path(arguments.png))
        print(f"{len(v)} pictures: {arguments.png}")
    if chains is not None:
        print(run_chains.sentence(chains))
        write_json(str(run.folder / f"{name}.json"), chains)
    elif (mixing := run_mixing(run, model, arguments.steps, arguments.seed)) is not None:
        print(mixing.sentence)
        write_json(str(run.folder / f"{name}.json"), {"steps": arguments.steps, **mixing.facts()})
    measured = f"eblvm fid {run.folder / name}.pt DATA; " if v.dim() == 4 and arguments.kind != "posterior" else ""
    print(f"next: {measured}eblvm eval {run.folder}; eblvm report {run.folder}")


def drawn(run: SavedRun, model: str, arguments: Namespace) -> tuple[Tensor, dict[str, Any] | None]:
    """The samples, and of exact chains what is known of them."""
    from eblvm.engine.sampling import inpainting, run_chains, run_samples

    steps, seed, kind, start = arguments.steps, arguments.seed, arguments.kind, arguments.start
    if arguments.sampler is not None:
        proposals = run_chains.Proposals(arguments.sampler, arguments.step_size, arguments.leapfrog)
        steps = run_samples.GIBBS_SWEEPS if steps is None else steps
        return run_chains.run_chains(run, model, arguments.count, steps, seed, proposals, kind, start)
    if kind == "inpainting":
        return inpainting.inpaint(run, model, arguments.count, steps, seed, arguments.known, start), None
    return run_samples.sample_over_ranks(run, model, arguments.count, steps, seed, kind, start), None
