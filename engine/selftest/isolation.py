"""Checks in a process of their own. One check may crash it, hang, or lose the GPU's context, after which nothing runs
there: a new process then goes on with the next check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch

from eblvm.engine.machine import own_device
from eblvm.engine.selftest.finding import Finding, Measured, SelfCheck, run

LIMIT_S = 900.0  # of one check
Groups = Sequence[Callable[[str], Iterator[SelfCheck]]]


def isolated(groups: Groups, device: str, begin: Callable[[str], None], limit_s: float = LIMIT_S) -> Iterator[Finding]:
    """Run the checks of all groups, each after `begin` of its name; one that ends or keeps its process has failed."""
    context, done, start = get_context("spawn"), 0, "the start of a process for the checks"
    while True:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=work, args=(there, groups, device, done), daemon=True)
        process.start()
        there.close()
        running: str | None = start
        try:
            while here.poll(limit_s):
                said = here.recv()
                if said is None:
                    return
                if isinstance(said, str):
                    running = said
                    begin(said)
                else:
                    running, done = None, done + 1
                    yield said
            problem = f"it took more than {limit_s:g} s; its process was ended"
        except EOFError:
            process.join()
            problem = f"its process ended with code {process.exitcode}"
        finally:
            process.kill()
            process.join()
        if running is not None:
            done += 1
            yield Finding(running, None, None, "", problem)
        if running == start:
            return


def work(to: Connection, groups: Groups, device: str, done: int) -> None:
    """Send the name of each check before it runs, its finding, and None at the end; end after one that lost the GPU."""
    own_device(device)
    for finding in run(islice(listed(groups, device), done, None), to.send):
        to.send(finding)
        if finding.problem and lost(device):
            return
    to.send(None)


def listed(groups: Groups, device: str) -> Iterator[SelfCheck]:
    """Yield the checks of all groups; of one that cannot make them, a check that raises why."""
    for group in groups:
        try:
            yield from group(device)
        except Exception as error:
            yield SelfCheck(group.__name__, partial(raise_again, error))


def raise_again(error: Exception) -> Measured:
    raise error


def lost(device: str) -> bool:
    """Does the device no longer answer? An illegal access ends a CUDA context for good."""
    if torch.device(device).type == "cuda":
        try:
            torch.cuda.synchronize(device)
        except RuntimeError:
            return True
    return False
