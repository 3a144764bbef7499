"""The contract of a sampler: its options, the runs that it suits, and its samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.options import Options, flag

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun
    from eblvm.engine.sampling.mixing import Mixing

MOST_STEPS = 10**9


class Samples(NamedTuple):
    values: torch.Tensor  # [n, ...]
    facts: dict[str, Any] | None = None  # of the chains, as plain JSON, where the sampler knows some
    sentence: str = ""  # the same in words


class Sampler(Options):
    """The contract. `target` is an option of every sampler of several distributions; its flag is --kind."""

    group = "sampling"
    automatic: ClassVar[bool] = False  # a run's own where it suits the run; the others are asked for by name
    quick: ClassVar[bool] = False  # a hundred samples need seconds
    divides: ClassVar[bool] = True  # each process can draw a slice: no fact is of all chains together

    def suits(self, run: SavedRun) -> str:
        """Empty, or why this sampler is not for the run, and what to do."""
        raise NotImplementedError

    @property
    def work(self) -> str:
        """The work of each sample, to follow their number in a sentence."""
        raise NotImplementedError

    def draw(self, run: SavedRun, model: str, count: int, seed: int, first: int, total: int) -> Samples:
        """Samples first .. first + count - 1 of the seed's `total`, of the first replica, [n, D] or [n, C, S, S].

        A sample is the same whichever others are drawn with it; `total` matters to a grid of conditions alone."""
        raise NotImplementedError

    def mixing(self, run: SavedRun, model: str, seed: int) -> Mixing | None:
        """The agreement of chains from several starts; None of a sampler whose chains keep no distribution."""
        return None

    def sample(
        self, run: SavedRun, model: str, count: int, seed: int = 0, first: int = 0, total: int | None = None
    ) -> Samples:
        """`draw`, on the run's threads; without a `total` these samples are all."""
        torch.set_num_threads(run.config.running.threads)
        return self.draw(run, model, count, seed, first, count if total is None else total)

    def sample_over_ranks(self, run: SavedRun, model: str, count: int, seed: int = 0) -> Samples:
        """`sample`, each process drawing its slice: all of them on the first, and on the others their own."""
        from eblvm.engine.autodiff import collectives
        from eblvm.engine.training import distributed

        if not self.divides:
            return self.sample(run, model, count, seed)
        if count < collectives.size():
            size = collectives.size()
            raise UserError(f"got a count of {count} for {size} processes, expected at least one for each")
        here = collectives.local_slice(count)
        own = self.sample(run, model, here.stop - here.start, seed, here.start, count)
        return own._replace(values=distributed.gather_to_rank0(own.values))


def flag_of(option: str) -> str:
    """The flag of a sampler's option: `kind` is the name of a node, so that the option is `target`."""
    return "--kind" if option == "target" else flag(option)
