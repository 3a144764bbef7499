"""`eblvm bench newton-cost --network lean|published|freyface`: the time of a step by the Newton response.

lean, published: the rows of `eblvm bench deep` that price it, of one network, as a record of their own: MDSM, N = 0 and
the Newton step at K = 5 and 1. The whole suite runs eight times as long. freyface: the fused steps of a GRBM of Frey
face's size, DSM, N = 0, N = 5 and the Newton step, each relative to N = 5.
"""

from typing import Any

import torch

from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.measurements import deep
from eblvm.bench.tools import record
from eblvm.bench.tools.registry import Case
from eblvm.bench.tools.timing import interleaved, median, ratio_by_round
from eblvm.engine import tables
from eblvm.engine.recipes import recipe

FREYFACE_SCHEMA = "eblvm-newton-freyface/1"  # of the networks: that of suite `deep`
FREYFACE: dict[str, dict[str, Any]] = {
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
    chosen = [deep.named(f"{prefix}method=mdsm", mdsm), deep.named(f"{prefix}method=bimdsm N=0 K=5", none)]
    return chosen + deep.newton_cases(base, prefix)


def run(network: str, rounds: int) -> dict[str, Any]:
    command = f"eblvm bench newton-cost --network {network} --rounds {rounds}"
    if network == "freyface":
        body = {"rounds": rounds, "rows": freyface(rounds)}
        return record.make(FREYFACE_SCHEMA, "newton-freyface", command, "cpu", body)
    return deep.run(rounds, chosen=cases(network)) | {"name": f"deep-newton-{network}", "command": command}


def freyface(rounds: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    steps = [EngineStep(recipe("freyface").replaced(**changes), (560,)) for changes in FREYFACE.values()]
    (readings,) = interleaved([steps], rounds, "cpu")
    return [
        {"case": name, "ms": median(times), "to_unrolled": ratio_by_round(times, readings[0])}
        for name, times in zip(FREYFACE, readings, strict=True)
    ]


def format_table(result: dict[str, Any]) -> str:
    if result["name"] != "newton-freyface":
        return deep.format_table(result)
    return tables.text(tuple(result["rows"][0]), [list(row.values()) for row in result["rows"]])
