"""`python -m eblvm.bench.suites.newton_cost [rounds]`: the rows of `eblvm bench deep` that price the Newton step.

MDSM, N = 0 and the Newton step at K = 5 and 1, of the lean and of the published network, as a record of their own: the
whole suite takes four times as long.
"""

import sys

from eblvm.bench.suites import deep
from eblvm.bench.tools import record
from eblvm.bench.tools.registry import Case
from eblvm.engine.recipes import recipe


def cases() -> list[Case]:
    found = []
    for network, prefix in (("lean", ""), ("published", "network=published ")):
        base = recipe("cifar10").replaced(batch=deep.BATCH, network=network)
        found.append(deep.named(f"{prefix}method=mdsm", base.replaced(method="mdsm")))
        found.append(deep.named(f"{prefix}method=bimdsm N=0 K=5", base.replaced(N=0, K=5)))
        found += deep.newton_cases(base, prefix)
    return found


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    made = deep.run(rounds, found=cases())
    made |= {"name": "deep-newton", "command": f"python -m eblvm.bench.suites.newton_cost {rounds}"}
    print(deep.format_table(made))
    print(f"wrote {record.write(made, record.RECORDS).name}")
