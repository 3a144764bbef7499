"""The tasks of every suite's contest: the cases that other libraries can do too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eblvm.bench.contest import bidvl, ops, pictures, sampling
from eblvm.bench.contest.task import Task
from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools.agreement import under_way
from eblvm.bench.tools.registry import SEMANTICS, Case
from eblvm.engine.config import Config
from eblvm.engine.recipes import recipe
from eblvm.engine.types import Params

SMALL: dict[str, Any] = {"batch": 13, "latent": 7, "dtype": "float64"}


@dataclass(frozen=True)
class Training(Task):
    """One training step of a case; the check is theta's gradient on a `small` one."""

    case: Case
    small: Case
    step: Callable[[Case], Any] = CaseStep
    long: bool = False

    @property
    def name(self) -> str:
        return self.case.name

    def engine(self) -> Any:
        return self.step(self.case)

    def suits(self, contestant: Contestant) -> bool:
        return super().suits(contestant) and contestant.enter(self.small) is not None

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self.case)

    def difference(self, contestant: Contestant) -> float | None:
        entrant = contestant.enter(self.small)
        if not hasattr(entrant, "gradient"):
            return None
        engine = self.step(self.small)
        engine.state = under_way(engine.state)
        noise = engine.noise()
        expected = engine.gradient(noise)
        return relative(entrant.gradient(engine.state, engine.v, noise), expected)


def relative(got: Params, expected: Params) -> float:
    """The largest difference, relative to the largest entry of each parameter."""
    assert got.keys() == expected.keys(), (got.keys(), expected.keys())
    return max(float((got[k] - x).abs().max() / x.abs().max().clamp(min=1e-30)) for k, x in expected.items())


def of_grbm(cases: Sequence[Case]) -> list[Task]:
    return [Training(c, small_grbm(c)) for c in cases]


def small_grbm(case: Case) -> Case:
    """The case on a model that is quickly compiled and run, with at most two steps of a kind."""
    few = {name: min(case.config[name], 2) for name in ("N", "K", "replicas") if case.config.get(name) is not None}
    visible = 1 if case.config["method"] == "ssm" else min(case.visible, 11)
    return replace(case, config=case.config.replaced(**SMALL, **few), shape=(visible,))


def grbm() -> list[Task]:
    """Frey face's sizes: as published at N = 0 and 5, with a shared minibatch and SGD unrolled; DSM, SSM and CD; and
    Langevin sampling."""
    base = recipe("freyface")
    published, dual = SEMANTICS
    configs = [base.replaced(method="bidsm", **published, N=N, K=5) for N in (0, 5)]
    configs.append(base.replaced(method="bidsm", **dual, N=5, K=5, unroll_lr=0.02))
    configs += [base.replaced(method=method) for method in ("dsm", "ssm", "cd")]
    return [*of_grbm([Case(config, (560,)) for config in configs]), sampling.Langevin()]


def toy() -> list[Task]:
    """The checkerboard's sizes: one run and ten replicas, as published, and DSM."""
    base = recipe("checkerboard")
    configs = [base.replaced(**SEMANTICS[0], replicas=r) for r in (1, 10)]
    configs.append(base.replaced(method="dsm", replicas=10))
    return of_grbm([Case(config, (2,), ("replicas",)) for config in configs])


def deep() -> list[Task]:
    """The lean network at 16 channels, batch 8: as published at N = 0, 5, with a shared minibatch, checkpointed, and
    with unrolled steps recomputed; then at 64 channels, where the start of an operator weighs less."""
    base = recipe("cifar10").replaced(batch=8, width=16)
    bilevel = base.replaced(method="bimdsm", K=5)
    configs = {
        "method=mdsm": base.replaced(method="mdsm"),
        "method=mdsm checkpoint=blocks": base.replaced(method="mdsm", checkpoint="blocks"),
        "method=bimdsm noise=fresh N=0 K=5": bilevel.replaced(noise="fresh", N=0),
        "method=bimdsm noise=fresh N=5 K=5": bilevel.replaced(noise="fresh", N=5),
        "method=bimdsm noise=fresh N=5 K=5 unroll_memory=recompute": bilevel.replaced(
            noise="fresh", N=5, unroll_memory="recompute"
        ),
        "method=bimdsm noise=shared N=5 K=5": bilevel.replaced(noise="shared", N=5),
        "method=mdsm width=64": base.replaced(method="mdsm", width=64),
        "method=bimdsm noise=shared N=0 K=5 width=64": bilevel.replaced(noise="shared", N=0, width=64),
    }
    return [Training(Case(c, (3, 32, 32), title=name), small_deep(c, name), long=True) for name, c in configs.items()]


def small_deep(config: Config, name: str) -> Case:
    few = {n: min(config[n], 2) for n in ("N", "K") if config.get(n) is not None}
    posterior = {"posterior_width": 2} if config.get("posterior_width") is not None else {}
    sizes: dict[str, Any] = {"width": 2, "depth": 12, "latent": 3, "head_width": 5, "batch": 4, "dtype": "float64"}
    return Case(config.replaced(**sizes, **few, **posterior), (3, 8, 8), title=name)


def vages() -> list[Task]:
    """A GRBM at Frey face's sizes, as published, with L = 2 samples."""
    config = recipe("freyface").replaced(method="vages-dsm", K=5, L=2, noise="fresh", divergence="kl")
    return of_grbm([Case(config, (560,))])


def tasks(suite: str, data: Path | None = None, scratch: Path = Path()) -> list[Task]:
    """Those of a suite; `data` is the folder of CelebA's pictures, `scratch` one for files of contestants."""
    if suite == "data":
        return pictures.tasks(data, scratch)
    makers: dict[str, Callable[[], list[Task]]] = {
        "grbm": grbm,
        "toy": toy,
        "deep": deep,
        "vages": vages,
        "kernels": ops.tasks,
        "bidvl": bidvl.tasks,
    }
    return makers[suite]()
