"""`eblvm plan`: memory, FLOPs and traffic of a step, before anything is allocated."""

from pathlib import Path

from eblvm.engine import recipes
from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser, at_least, integers, print_next, write_json

OWN = ("N",)
EXAMPLES = (
    "eblvm plan celeba64 --N 0,5,10 --gpus 4 --memory 11GiB",
    "eblvm plan cifar10 --method mdsm --precision bf16 --plot plan.pdf",
)


def main(argv: list[str]) -> None:
    description = "Count memory and FLOPs of a training step on tensors without memory, and what fits on a device."
    usage = "eblvm plan RECIPE [options of train] [options]"
    parser = Parser("plan", description, EXAMPLES, add_help=False, usage=usage)
    add_run_options(parser, OWN)
    parser.add_argument("--N", type=integers, metavar="N,N,...", help="unrolled steps")
    parser.add_argument("--gpus", type=int, default=1, help="processes that divide the batch")
    parser.add_argument("--memory", help="memory of each, such as 11GiB: shows what fits")
    parser.add_argument("--plot", metavar="FILE", help="plot memory against N: .png, .pdf or .svg")
    parser.add_json()
    arguments = parser.parse(argv)
    at_least(arguments, gpus=1)
    config = configuration(parser, arguments, OWN).replaced(device="cpu")
    if config.model.plans and config.model.checkpoint == "none" and arguments.checkpoint is None:
        config = config.replaced(checkpoint="auto")
    config.check()

    from eblvm.engine.planning import plan, table

    memory = None if arguments.memory is None else table.parse_bytes(arguments.memory)
    facts = plan.plan(config, arguments.N or (config.get("N", 0),), arguments.gpus, memory)
    print(table.format_table(facts))
    write_json(arguments.json, facts)
    if arguments.plot is not None:
        from eblvm.engine.planning.plot import plot  # slow to import

        plot(facts, Path(arguments.plot))
        print(f"plot: {arguments.plot}")
    words = [config.recipe, *" ".join(recipes.arguments(config, without=("data",))).split()]
    data = config.get("data", "")  # None where the files are still to be named
    trained = [] if data is None else [("train", *words, *(["--data", data] if data else []))]
    print_next(("profile", *words), *trained)
