"""`eblvm train`: train a recipe, or continue a run."""

from pathlib import Path

from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser

USAGE = "eblvm train RECIPE [options]; 'eblvm train RECIPE --method M --help' shows what that run reads"
EXAMPLES = (
    "eblvm train checkerboard --method bidsm --N 5 --K 5 --out runs/board     # again: continues it, bitwise",
    "eblvm train mnist --small --data mnist.npz --method vages-mdsm --help    # what that run reads",
)


def main(argv: list[str]) -> None:
    parser = Parser("train", "Train a recipe, or continue the run in --out.", EXAMPLES, add_help=False, usage=USAGE)
    add_run_options(parser)
    parser.add_argument("--out", metavar="DIR", help="run folder (default runs/RECIPE-METHOD)")
    parser.add_argument("--dry-run", action="store_true", help="print the configuration and stop")
    arguments = parser.parse(argv)
    config = configuration(parser, arguments)
    config.check()
    if arguments.dry_run:
        for name, value in (("recipe", config.recipe), *((leaf.name, leaf.value) for leaf in config.leaves())):
            print(f"{name:18} {value}")
        return

    from eblvm.engine.training.loop import train

    train(config, Path(arguments.out or f"runs/{config.recipe}-{config.method.kind}"))
