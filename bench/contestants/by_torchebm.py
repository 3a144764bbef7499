"""torchebm: its losses for DSM and SSM on the GRBM's free energy, and its Langevin sampler."""

from typing import Any

import torch
from torch import Tensor, nn

from eblvm.bench.contestants.by_naive import PlainGrbm
from eblvm.bench.contestants.roster import contestant
from eblvm.bench.contestants.steps import batch
from eblvm.bench.naive.dsm import Dsm, Grbm
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.types import State
from eblvm.engine.types import Params


class FreeEnergy(nn.Module):
    """The model as torchebm takes it: forward is the energy of x."""

    def __init__(self, grbm: Grbm):
        super().__init__()
        self.grbm = grbm

    def forward(self, x_BD: Tensor) -> Tensor:
        return self.grbm.free_energy(x_BD)


def adapt(method: Dsm) -> None:
    """DSM's loss by torchebm, on noise that is handed to it."""
    from torchebm.losses import DenoisingScoreMatching

    dtype = method.model.W.dtype
    loss = DenoisingScoreMatching(FreeEnergy(method.model), noise_scale=method.sigma, dtype=dtype, device="cpu")

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
        self.loss = SlicedScoreMatching(FreeEnergy(self.grbm), n_projections=1, dtype=self.v.dtype, device="cpu")
        self.optimizer = torch.optim.Adam(self.grbm.parameters(), c["lr"][0], c.optimisation.betas, fused=True)

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        for name, p in self.grbm.named_parameters():
            p.data.copy_(state.theta[name])
        self.loss._get_random_projections = lambda shape, generator=None: noise["direction"][0]
        found = torch.autograd.grad(self.loss(v), list(self.grbm.parameters()))
        return dict(zip(state.theta, found, strict=True))

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
