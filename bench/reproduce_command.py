"""The `reproduce` command: the papers' tables and figures, what each needs, and a run of one."""

import json
from pathlib import Path

from eblvm.bench.subcommands import JSON_HELP
from eblvm.engine.cli.parser import Parser, at_least
from eblvm.engine.errors import UserError

EXAMPLES = (
    "eblvm reproduce                                               # all of them, state and cost",
    "eblvm reproduce bism-table1                                   # its commands, the paper's figures",
    "eblvm reproduce bism-table1 --data frey.npz --out runs/table1 # runs it; again: continues",
)


def main(argv: list[str]) -> None:
    parser = Parser(
        "reproduce",
        "The tables and figures of the three papers: their state here, their cost, and how to run them.",
        EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="of a table or figure; none: list them all")
    parser.add_argument("--out", type=Path, metavar="DIR", help="run it in this folder, or continue it there")
    parser.add_argument("--data", type=Path, metavar="PATH", help="the data set, or its folder")
    parser.add_argument("--seeds", type=int, help="seeds of every run, at once if they fit (default: as listed)")
    parser.add_argument("--small", action="store_true", help="its variant for a CPU, where it has one")
    parser.add_argument("--steps", type=int, help="training steps of every run, to shorten it")
    parser.add_argument("--chains", type=int, help="AIS chains of log-likelihoods (2000)")
    parser.add_argument("--temperatures", type=int, help="AIS temperatures (2000)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--costs", action="store_true", help="count the costs of all runs again, and record them")
    parser.add_argument("--json", type=Path, metavar="FILE", help=JSON_HELP)
    arguments = parser.parse(argv)
    at_least(arguments, seeds=1, steps=1, chains=2, temperatures=1)

    from eblvm.bench.reproduce import listing
    from eblvm.bench.reproduce.experiments import experiments, find

    if arguments.costs:
        from eblvm.bench.reproduce import costs

        print(f"wrote {costs.write()}")
        return
    if arguments.name is None:
        if arguments.out is not None:
            raise UserError(f"--out needs a NAME: {', '.join(experiments())}")
        print(listing.everything())
        if arguments.json is not None:
            states = {e.name: {"title": e.title, "state": listing.state(e)} for e in experiments().values()}
            arguments.json.write_text(json.dumps(states, indent=1) + "\n")
        return
    experiment = find(arguments.name)

    from eblvm.bench.reproduce import running

    given = [("--chains", arguments.chains), ("--temperatures", arguments.temperatures)]
    settings = running.Settings(
        arguments.out or Path("DIR"), arguments.data, arguments.steps, arguments.seeds, arguments.small,
        arguments.device, " ".join(f"{flag} {value}" for flag, value in given if value is not None),
    )  # fmt: skip
    if arguments.out is None:
        rows = experiment.chosen(arguments.small)
        print(
            listing.one(experiment, {r.label: running.commands(experiment, r, settings) for r in rows}, arguments.small)
        )
        return
    from eblvm.bench.tools import record

    record.commit()  # of the code that is loaded: the working tree may go on while it runs
    facts = running.run(experiment, settings)
    if facts is None:
        return
    print(listing.side_by_side(facts))
    if arguments.json is not None:
        words = [w for w in argv if w not in ("--json", str(arguments.json))]
        command = without_folders(["eblvm reproduce", *words])
        rows = [row | {"command": without_folders(row["command"].split())} for row in facts["rows"]]
        facts |= {"rows": rows}
        made = record.make(running.SCHEMA, f"reproduce-{experiment.name}", command, arguments.device, facts)
        print(f"wrote {record.write(made, arguments.json)}")


def without_folders(words: list[str]) -> str:
    """A command for a record, which names no folders of the machine it was made on."""
    return " ".join(Path(word).name if "/" in word else word for word in words)
