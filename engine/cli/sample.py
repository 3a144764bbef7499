"""`eblvm sample`: draw samples of a run."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch

from eblvm.engine import sampling
from eblvm.engine.cli.parser import Parser, at_least, at_most, print_next, write_json
from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.options import Leaf
from eblvm.engine.runs.folder import read_config
from eblvm.engine.sampling.base import flag_of
from eblvm.engine.values import checked

EXAMPLES = (
    "eblvm sample runs/frey --count 100",
    "eblvm sample runs/mnist --kind interpolation",
    "eblvm sample runs/mnist --kind inpainting --known left",
    "eblvm sample runs/mnist --sampler hmc --kind posterior --steps 500 --step-size 0.1",
)


def add_run(parser: Parser) -> None:
    """The options of every command on a finished run."""
    parser.add_argument("--model", help="best (by validation), last or ema")
    parser.add_argument("--data", help="where the data set is now, if it moved")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")


def build_parser() -> Parser:
    parser = Parser("sample", "Samples of a run: DIR/samples.pt and DIR/samples.png.", EXAMPLES)
    parser.add_argument("dir", metavar="DIR", help="run folder")
    parser.add_argument("--count", type=int, default=100, help="samples")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--png", metavar="DIR", help="also write every image as a file of its own")
    add_run(parser)
    own = ", ".join(name for name, sampler in sampling.KINDS.items() if sampler.automatic)
    group = parser.add_argument_group("sampler options")
    group.add_argument("--sampler", metavar="NAME", help=f"{', '.join(sampling.KINDS)}; by default the run's: {own}")
    for name, by_sampler in sampler_options().items():
        group.add_argument(flag_of(name), dest=name, metavar="X", help=described(by_sampler))
    return parser


def sampler_options() -> dict[str, dict[str, Leaf]]:
    """The options of all samplers, by name and by the samplers that read them."""
    by_name: dict[str, dict[str, Leaf]] = {}
    for kind, sampler in sampling.KINDS.items():
        for leaf in sampler.leaves():
            by_name.setdefault(leaf.name, {})[kind] = leaf
    return by_name


def described(by_sampler: dict[str, Leaf]) -> str:
    """The help of an option, once for all samplers that read it alike."""
    readers: dict[str, list[str]] = {}
    for kind, leaf in by_sampler.items():
        default = "" if leaf.value is None else f", default {leaf.value}"
        readers.setdefault(f"{leaf.field.metadata['help']}{default}", []).append(kind)
    return "; ".join(f"{', '.join(kinds)}: {text}" for text, kinds in readers.items())


def main(argv: list[str]) -> None:
    arguments = build_parser().parse(argv)
    at_least(arguments, count=1, seed=0)
    at_most(arguments, count=10**7, seed=2**62)
    given = given_options(arguments)
    read_config(Path(arguments.dir))  # report a folder that is not a run before torch is imported

    from eblvm.engine.evaluation import plots
    from eblvm.engine.evaluation.image_sets import as_images, write_images
    from eblvm.engine.runs.saved import SavedRun
    from eblvm.engine.sampling.langevin import CONDITIONS
    from eblvm.engine.training import distributed

    with distributed.joined(arguments.device):
        run = SavedRun.open(Path(arguments.dir), arguments.data, arguments.device)
        model = arguments.model or run.default_model()
        sampler = sampling.sampler_of(run, arguments.sampler, **given)
        samples = sampler.sample_over_ranks(run, model, arguments.count, arguments.seed)
        if not distributed.is_first():
            return
    v, target = samples.values, "inpainting" if sampler.kind == "inpainting" else arguments.target
    name = "samples" if target is None else f"samples-{target}"
    buffer = io.BytesIO()
    torch.save(v, buffer)
    write_atomic(run.folder / f"{name}.pt", buffer.getvalue())
    columns = -(-arguments.count // CONDITIONS) if target == "conditional" else 10
    plots.samples(v, run.image_shape if target != "posterior" else None, run.folder / f"{name}.png", columns)
    print(f"{len(v)} samples: {run.folder / name}.pt, {run.folder / name}.png")
    if arguments.png is not None:
        if run.image_shape is None and v.dim() != 4:
            raise UserError(f"got --png {arguments.png}, but these samples are no images; remove it")
        write_images(as_images(v, run.image_shape), Path(arguments.png))
        print(f"{len(v)} pictures: {arguments.png}")
    if samples.facts is not None:
        print(samples.sentence)
        write_json(str(run.folder / f"{name}.json"), samples.facts)
    elif (mixing := sampler.mixing(run, model, arguments.seed)) is not None:
        print(mixing.sentence)
        write_json(str(run.folder / f"{name}.json"), {"steps": given.get("steps"), **mixing.facts()})
    data = run.config.get("data")
    comparable = v.dim() == 4 and target is None and data is not None
    measured = [("fid", f"{run.folder / name}.pt", data)] if comparable else []
    print_next(*measured, ("eval", run.folder), ("report", run.folder))


def given_options(arguments: Namespace) -> dict[str, Any]:
    """The sampler options that were given, as values; `--kind inpainting` is another name of that sampler."""
    if arguments.sampler is None and arguments.target == "inpainting":
        arguments.sampler, arguments.target = "inpainting", None
    given = {}
    for name, by_sampler in sampler_options().items():
        if (text := getattr(arguments, name)) is not None:
            leaf = next(iter(by_sampler.values()))  # an option has one type in all samplers
            given[name] = checked(leaf, leaf.parsed(text))
    return given
