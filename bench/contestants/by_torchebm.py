"""torchebm: its losses for DSM and SSM on the GRBM's free energy, and its Langevin sampler."""

from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.by_naive import PlainGrbm
from eblvm.bench.contestants.roster import contestant
from eblvm.bench.contestants.steps import batch
from eblvm.bench.naive.dsm import Dsm, Grbm
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.types import Params


def free_energy(grbm: Grbm) -> Any:
    """The model as torchebm takes it: forward is the energy of x."""
    from torchebm.core import BaseModel

    class FreeEnergy(BaseModel):
        def __init__(self) -> None:
            super().__init__(dtype=grbm.W.dtype, device="cpu")
            self.grbm = grbm

        def forward(self, x: Tensor) -> Tensor:
            return self.grbm.free_energy(x)

    return FreeEnergy()


def adapt(method: Dsm) -> None:
    """DSM's loss by torchebm, on noise that is handed to it."""
    from torchebm.losses import DenoisingScoreMatching

    dtype = method.model.W.dtype
    loss = DenoisingScoreMatching(free_energy(method.model), noise_scale=method.sigma, dtype=dtype, device="cpu")

    def gradient(v_BD: Tensor, draw: Any) -> list[Tensor]:
        noise = method.sigma * draw()
        loss.perturb_data = lambda x, generator=None: (x + noise, noise)
        return list(torch.autograd.grad(loss(v_BD), list(method.model.parameters())))

    method.gradient = gradient  # type: ignore[method-assign]


@contestant("torchebm", "grbm", "toy", needs="torchebm")
def dsm(case: Case) -> PlainGrbm | None:
    return PlainGrbm(case, adapt) if case.config["method"] == "dsm" else None  # type: ignore[arg-type]


class SlicedStep:
    """SSM with one Rademacher direction per sample."""

    def __init__(self, case: Case):
        from torchebm.losses import SlicedScoreMatching

        c = case.config
        torch.manual_seed(c["seed"])
        self.v = batch(c, case.shape)
        self.grbm = Grbm(case.visible, c["latent"]).to(self.v.dtype)
        self.loss = SlicedScoreMatching(free_energy(self.grbm), n_projections=1, dtype=self.v.dtype, device="cpu")
        self.optimizer = torch.optim.Adam(self.grbm.parameters(), c["lr"][0], (c["beta1"], c["beta2"]), fused=True)

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        for name, p in self.grbm.named_parameters():
            p.data.copy_(state.theta.params[name])
        self.loss._get_random_projections = lambda shape, generator=None: noise["direction"][:, 0]
        found = torch.autograd.grad(self.loss(v), list(self.grbm.parameters()))
        return dict(zip(state.theta.params, found, strict=True))

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.loss(self.v).backward()
        self.optimizer.step()

    def inputs(self) -> list[Tensor]:
        moments = [t for s in self.optimizer.state.values() for t in s.values()]
        return [
            self.v,
            *self.grbm.parameters(),
            *moments,
            *(p.grad for p in self.grbm.parameters() if p.grad is not None),
        ]


@contestant(
    "torchebm",
    "grbm",
    needs="torchebm",
    note="Checked with one visible unit: it squares u.s where the engine has |s|^2, the same in expectation only.",
)
def ssm(case: Case) -> SlicedStep | None:
    return SlicedStep(case) if case.config["method"] == "ssm" else None


class Sampler:
    def __init__(self, task: Any):
        self.task = task

    def chains(self, dtype: torch.dtype, noise_scale: float) -> Any:
        from torchebm.samplers import LangevinDynamics

        task = self.task
        _, theta, v = task.model(dtype)
        grbm = Grbm(task.visible, task.latent).to(dtype)
        for name, p in grbm.named_parameters():
            p.data.copy_(theta[name])
        rate = 0.5 * task.step_size**2  # its noise has the variance 2 rate
        sampler = LangevinDynamics(free_energy(grbm), rate, noise_scale, dtype=dtype, device="cpu")
        return lambda: sampler.sample(v.clone(), n_steps=task.steps)


@contestant("torchebm", "grbm", task="langevin", needs="torchebm")
def langevin(task: Any) -> Sampler:
    return Sampler(task)
