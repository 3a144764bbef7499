"""`python -m eblvm.bench.suites.newton_cost [deep|freyface] [rounds]`: what a step by the Newton response takes.

deep: the rows of `eblvm bench deep` that price it, as a record of their own: MDSM, N = 0 and the Newton step at K = 5
and 1, of the lean and of the published network. The whole suite takes four times as long. freyface: the fused steps of
a GRBM of Frey face's size, DSM, N = 0, N = 5 and the Newton step, each beside N = 5.
"""

import sys
from typing import Any

import torch

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.suites import deep
from eblvm.bench.tools import record
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import interleaved, median
from eblvm.engine import tables
from eblvm.engine.recipes import recipe

FREYFACE = {
    "N=5 K=5": {},
    "N=0 K=5": {"N": 0},
    "best_response=newton K=5": {"best_response": "newton"},
    "best_response=newton K=1": {"best_response": "newton", "K": 1},
    "method=dsm": {"method": "dsm"},
}


def cases() -> list[Case]:
    found = []
    for network, prefix in (("lean", ""), ("published", "network=published ")):
        base = recipe("cifar10").replaced(batch=deep.BATCH, network=network)
        found.append(deep.named(f"{prefix}method=mdsm", base.replaced(method="mdsm")))
        found.append(deep.named(f"{prefix}method=bimdsm N=0 K=5", base.replaced(N=0, K=5)))
        found += deep.newton_cases(base, prefix)
    return found


def deep_rows(rounds: int) -> tuple[dict[str, Any], str]:
    made = deep.run(rounds, found=cases())
    made |= {"name": "deep-newton", "command": f"python -m eblvm.bench.suites.newton_cost deep {rounds}"}
    return made, deep.format_table(made)


def freyface(rounds: int) -> tuple[dict[str, Any], str]:
    torch.set_num_threads(1)
    steps = [EngineStep(recipe("freyface").replaced(**changes), (560,)) for changes in FREYFACE.values()]
    (readings,) = interleaved([steps], rounds, "cpu")
    rows = [
        {"case": name, "ms": median(found), "to_unrolled": deep.ratio_by_round(found, readings[0])}
        for name, found in zip(FREYFACE, readings, strict=True)
    ]
    command = f"python -m eblvm.bench.suites.newton_cost freyface {rounds}"
    made = record.make("eblvm-newton-freyface/1", "newton-freyface", command, "cpu", {"rounds": rounds, "rows": rows})
    return made, tables.text(tuple(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    which, rounds = (sys.argv[1:] + ["deep", "5"][len(sys.argv) - 1 :])[:2]
    result, table = {"deep": deep_rows, "freyface": freyface}[which](int(rounds))
    print(table)
    print(f"wrote {record.write(result, record.RECORDS).name}")
