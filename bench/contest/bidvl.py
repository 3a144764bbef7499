"""The task of `eblvm bench bidvl --contestants`."""

from dataclasses import dataclass
from typing import Any

from eblvm.bench.contest.task import Task
from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.contestants.steps import EngineStep
from eblvm.bench.measurements import bidvl
from eblvm.bench.tools.registry import Case
from eblvm.engine.config import Config
from eblvm.engine.recipes import recipe


@dataclass(frozen=True)
class Bidvl(Task):
    """One step of BiDVL; the check is a parameter's largest difference after three steps of both, in fp64."""

    case: Case
    long = True

    @property
    def name(self) -> str:
        return self.case.name

    def engine(self) -> Any:
        return EngineStep(self.case.config, self.case.shape)

    def enter(self, contestant: Contestant) -> Any:
        step = bidvl.NaiveStep(self.case.config, self.case.shape)  # type: ignore[arg-type]
        contestant.enter(step.method)
        return step

    def difference(self, contestant: Contestant) -> float:
        return bidvl.difference(adapt=contestant.enter)


def tasks(config: Config | None = None) -> list[Task]:
    sizes = {"batch": 10, "width": 32, "posterior_width": 24, "generator_width": 24}  # half the published widths
    config = config or recipe("cifar10", method="bidvl").replaced(**sizes)
    return [Bidvl(Case(config, (3, 32, 32), title="method=bidvl batch=10 N=0 width=32"))]
