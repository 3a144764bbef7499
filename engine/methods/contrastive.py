"""Contrastive divergence and its persistent form for the GRBM (Hinton 2002; Tieleman 2008)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.autodiff.derivatives import grad
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.nets.base import call
from eblvm.engine.nets.grbm import GRBM, sweep
from eblvm.engine.optim.optimizers import Optimizer
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


def local_rows(chain: Tensor) -> Tensor:
    """The chains that this process moves. Each holds the rows of all; the others' are as old as the last checkpoint."""
    return chain if collectives.size() == 1 else chain[collectives.local_slice(len(chain))]


def with_local_rows(chain: Tensor, moved: Tensor) -> Tensor:
    if collectives.size() == 1:
        return moved
    chain = chain.clone()
    chain[collectives.local_slice(len(chain))] = moved
    return chain


@dataclass(frozen=True)
class ContrastiveDivergence:
    """grad = E_data dF(v)/dtheta - E_chain dF(v)/dtheta, the chain k Gibbs sweeps from the data (CD-k) or from where
    the last step left it (PCD-k, `persistent`; it starts at the first minibatch)."""

    energy: GRBM
    theta_optimizer: Optimizer
    sweeps: int
    persistent: bool

    def init(self, key: Key, v: Tensor) -> State:
        theta = self.energy.initial(key)
        return State(theta, {}, self.theta_optimizer.init(theta), (), {"v": v.clone()} if self.persistent else {}, {})

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        count = v.shape[torch.as_tensor(key.seed).dim()]
        kwargs: dict[str, Any] = {"first": first, "dtype": v.dtype, "device": v.device}
        return {
            "sweeps": [
                (
                    philox.uniform(key, purpose(Purpose.CHAIN_H, i), count, (self.energy.latent,), **kwargs),
                    philox.normal(key, purpose(Purpose.CHAIN_V, i), count, (self.energy.visible,), **kwargs),
                )
                for i in range(self.sweeps)
            ]
        }

    def _contrast(self, theta: Params, v: Tensor, model_v: Tensor) -> tuple[Tensor, Tensor]:
        loss = (
            call(self.energy, theta, "free_energy", v).mean() - call(self.energy, theta, "free_energy", model_v).mean()
        )
        return loss, loss.detach()

    def gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]:
        start = local_rows(state.chain["v"]) if self.persistent else v
        model_v, _ = sweep(state.theta, start, noise["sweeps"])
        gradient, loss = grad(lambda theta: self._contrast(theta, v, model_v), state.theta)
        moved = {"v": with_local_rows(state.chain["v"], model_v)} if self.persistent else {}
        return gradient, state._replace(chain=moved), {"loss": loss}

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        """The squared error of one-sweep reconstruction: the usual early-stopping signal of CD."""
        _, mean = sweep(state.theta, v, noise["sweeps"][:1])
        return (v - mean).square().sum(-1).mean()
