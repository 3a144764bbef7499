"""`python -m eblvm.bench.suites.newton_cost lean|published|freyface ROUNDS`: what a step by the Newton response takes.

lean, published: the rows of `eblvm bench deep` that price it, of one network, as a record of their own: MDSM, N = 0 and
the Newton step at K = 5 and 1. The whole suite takes eight times as long. freyface: the fused steps of a GRBM of Frey
face's size, DSM, N = 0, N = 5 and the Newton step, each beside N = 5.
"""

import sys
from typing import Any

import torch

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.suites import deep
from eblvm.bench.tools import record
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.recipes import recipe

FREYFACE = {
    "N=5 K=5": {},
    "N=0 K=5": {"N": 0},
    "best_response=newton K=5": {"best_response": "newton"},
    "best_response=newton K=1": {"best_response": "newton", "K": 1},
    "method=dsm": {"method": "dsm"},
}


def cases(network: str) -> list[Case]:
    prefix = "" if network == "lean" else f"network={network} "
    base = recipe("cifar10").replaced(batch=deep.BATCH, network=network)
    mdsm, none = base.replaced(method="mdsm"), base.replaced(N=0, K=5)
    found = [deep.named(f"{prefix}method=mdsm", mdsm), deep.named(f"{prefix}method=bimdsm N=0 K=5", none)]
    return found + deep.newton_cases(base, prefix)


def of_network(network: str, rounds: int) -> tuple[dict[str, Any], str]:
    made = deep.run(rounds, found=cases(network))
    command = f"python -m eblvm.bench.suites.newton_cost {network} {rounds}"
    made |= {"name": f"deep-newton-{network}", "command": command}
    return made, deep.format_table(made)


def freyface(rounds: int) -> tuple[dict[str, Any], str]:
    torch.set_num_threads(1)
    steps = [EngineStep(recipe("freyface").replaced(**changes), (560,)) for changes in FREYFACE.values()]
    (readings,) = interleaved([steps], rounds, "cpu")
    rows = [
        {"case": name, "ms": median(found), "to_unrolled": ratio_by_round(found, readings[0])}
        for name, found in zip(FREYFACE, readings, strict=True)
    ]
    command = f"python -m eblvm.bench.suites.newton_cost freyface {rounds}"
    made = record.make("eblvm-newton-freyface/1", "newton-freyface", command, "cpu", {"rounds": rounds, "rows": rows})
    return made, tables.text(tuple(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    which, rounds = sys.argv[1], int(sys.argv[2])
    result, table = freyface(rounds) if which == "freyface" else of_network(which, rounds)
    print(table)
    print(f"wrote {record.write(result, record.RECORDS).name}")
