"""A task of a contest: the work, who does it, and whether a result is the engine's."""

from dataclasses import dataclass
from typing import Any, ClassVar

from eblvm.bench.contestants.roster import Contestant


@dataclass(frozen=True)
class Task:
    """Done by the contestants whose `task` is this `work`."""

    work: ClassVar[str] = "step"
    long = False  # does one step take seconds?

    @property
    def name(self) -> str:
        raise NotImplementedError

    def engine(self) -> Any:
        """The engine's step, as a function of no arguments."""
        raise NotImplementedError

    def suits(self, contestant: Contestant) -> bool:
        return contestant.task == self.work

    def enter(self, contestant: Contestant) -> Any:
        """The contestant's step, as a function of no arguments."""
        return contestant.enter(self)

    def difference(self, contestant: Contestant) -> float | None:
        """The largest difference of its result from the engine's; None where they do not compute the same."""
        raise NotImplementedError


@dataclass(frozen=True)
class Offered(Task):
    """A task that a contestant may turn down: its `enter` then returns None."""

    def suits(self, contestant: Contestant) -> bool:
        return super().suits(contestant) and contestant.enter(self) is not None
