"""Real kills: runs of three kinds, on one and on two processes, are killed at random moments and continued until they
end; every result is compared bitwise with that of an uninterrupted run. `make kills`; KILLS=200, SEED=n.

    python -m tests.fuzz.kills [--kills 200] [--seed n] [--case deep] [--ranks 2] [--json FILE]

Processes are forked from one that has torch loaded, so that a start costs a fraction of a second.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten

from eblvm.bench.tools import record
from eblvm.engine.cli import main
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import read_rows
from eblvm.engine.training import loop

assert loop  # loaded before the first fork
SMALL = "--batch 8 --validations 2 --log-every 2 --keep 2".split()
CASES = {
    "checkerboard": "train checkerboard --method bidsm --N 2 --K 1 --steps 60 --checkpoint-every 4".split(),
    "deep": (
        "train digits --model deep --width 2 --latent 3 --head-width 5 --posterior-width 2 --N 1 --K 1 --ema 0.9 "
        "--steps 12 --checkpoint-every 2"
    ).split(),
    "bidvl": (
        "train digits --method bidvl --width 2 --posterior-width 2 --generator-width 2 --latent 4 "
        "--steps 16 --checkpoint-every 2"
    ).split(),
}
LOGGED = ("step", "loss", "lower", "validation")  # the other columns are times


def start(arguments: list[str], world: int, meeting: Path) -> list[int]:
    """Start a run of so many ranks and return its process ids."""
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            _child(arguments, rank, world, meeting)
        children.append(child)
    return children


def _child(arguments: list[str], rank: int, world: int, meeting: Path) -> None:
    code = 1
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        torch.set_num_threads(1)
        if world > 1:
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            dist.init_process_group("gloo", f"file://{meeting}", timedelta(seconds=60), rank=rank, world_size=world)
        code = main(arguments)
        if world > 1 and code == 0:
            dist.barrier()
    finally:
        os._exit(code)


def end(children: list[int], kill: bool = False) -> bool:
    """Wait for all processes, after a SIGKILL if `kill`; return whether all exited with code 0."""
    if kill:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    ended = [os.waitpid(child, 0)[1] for child in children]
    return not any(ended)


def running_until(deadline: float, children: list[int]) -> bool:
    """Wait until `deadline`, or until one process has ended; return whether all still run."""
    while time.time() < deadline:
        if any(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) for child in children):
            return False
        time.sleep(0.01)
    return True


def equal(a: Path, b: Path) -> bool:
    one, two = (checkpoint.newest(folder / "checkpoints")[0] for folder in (a, b))
    pairs = zip(tree_flatten(one)[0], tree_flatten(two)[0], strict=True)
    weights = all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in pairs)
    rows = ([{k: row.get(k) for k in LOGGED} for row in read_rows(folder / "stats.jsonl")] for folder in (a, b))
    return weights and next(rows) == next(rows)


def killed_run(
    case: str, world: int, folder: Path, whole: Path, whole_s: float, dice: random.Random
) -> tuple[int, bool]:
    """Run once with up to four kills; return (kills, whether the result equals that of the uninterrupted run)."""
    arguments, kills = [*CASES[case], *SMALL, "--out", str(folder / "run")], 0
    for attempt in range(50):
        children = start(arguments, world, folder / f"meeting-{attempt}")
        if kills < 4 and running_until(time.time() + dice.uniform(0, whole_s), children):
            end(children, kill=True)
            kills += 1
            continue
        if not end(children):
            raise RuntimeError(f"{case} on {world} ranks failed by itself after {kills} kills")
        return kills, equal(whole, folder / "run")
    raise RuntimeError("no end after 50 starts")


def run(wanted: int, seed: int, cases: list[str], worlds: list[int]) -> dict:
    dice, rows = random.Random(seed), []
    each = -(-wanted // (len(cases) * len(worlds)))
    for case in cases:
        for world in worlds:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                began = time.time()
                whole = folder / "whole" / "run"
                whole.parent.mkdir()
                arguments = [*CASES[case], *SMALL, "--out", str(whole)]
                if not end(start(arguments, world, folder / "meeting")):
                    raise RuntimeError(f"{case} on {world} ranks does not train")
                whole_s, kills, runs, bitwise = time.time() - began, 0, 0, 0
                while kills < each:
                    place = folder / str(runs)
                    place.mkdir()
                    own_kills, same = killed_run(case, world, place, whole, whole_s, dice)
                    kills, runs, bitwise = kills + own_kills, runs + 1, bitwise + same
                rows.append({"case": case, "ranks": world, "kills": kills, "runs": runs, "bitwise": bitwise})
                print(rows[-1], flush=True)
    return {"seed": seed, "kills": sum(r["kills"] for r in rows), "rows": rows,
            "all_bitwise": all(r["runs"] == r["bitwise"] for r in rows)}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--json", help="write the figures to this record; in a folder it gets a name")
    given = parser.parse_args()
    facts = run(given.kills, given.seed, given.case, given.ranks)
    print(json.dumps(facts))
    if given.json:
        command = " ".join(["python -m tests.fuzz.kills", *sys.argv[1:]]).split(" --json")[0]
        record.write(record.make("eblvm-kills/1", "kills", command, "cpu", facts), Path(given.json))
    sys.exit(0 if facts["all_bitwise"] else 1)
