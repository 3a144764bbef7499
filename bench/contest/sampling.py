"""The task of Langevin sampling, of `eblvm bench grbm --contestants`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contest.task import Task
from eblvm.bench.contestants.roster import Contestant
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.sampling.langevin import langevin, marginal_score
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


@dataclass(frozen=True)
class Langevin(Task):
    """Langevin dynamics on a GRBM's free energy; the check is where chains without noise end, in fp64."""

    work = "langevin"
    batch: int = 100
    visible: int = 560
    latent: int = 400
    steps: int = 20
    step_size: float = 0.02

    @property
    def name(self) -> str:
        return f"sampling=langevin steps={self.steps} chains={self.batch}"

    def model(self, dtype: torch.dtype) -> tuple[GRBM, Params, Tensor]:
        energy = GRBM(self.visible, self.latent)
        theta = {name: p.to(dtype) for name, p in energy.initial(Key(0, 0)).items()}
        return energy, theta, philox.uniform(Key(1, 0), 0, self.batch, (self.visible,), dtype=dtype)

    def chains(self, dtype: torch.dtype, temperature: float) -> Callable[[], Tensor]:
        energy, theta, v = self.model(dtype)
        score, schedule = marginal_score(energy, theta), [temperature] * self.steps
        return lambda: langevin(score, (v,), Key(0, 0), schedule, self.step_size)[0]

    def engine(self) -> Any:
        return self.chains(torch.float32, 1.0)

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self).chains(torch.float32, 1.0)

    def difference(self, contestant: Contestant) -> float:
        expected = self.chains(torch.float64, 0.0)()
        chains = contestant.enter(self).chains(torch.float64, 1e-13)()  # its noise has to be positive
        return float((chains - expected).abs().max() / expected.abs().max())
