"""Contrastive divergence and its persistent form for the GRBM (Hinton 2002; Tieleman 2008)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from eblvm.engine import autodiff
from eblvm.engine import nets as modules
from eblvm.engine.autodiff import collectives
from eblvm.engine.methods.base import Info, Method, Nets, Noise, Rates, Rows, State
from eblvm.engine.optim.base import Optimizer
from eblvm.engine.options import option
from eblvm.engine.types import Params
from eblvm.kernels import philox

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Posterior


class Cd(Method):
    """grad = E_data dF(v)/dtheta - E_chain dF(v)/dtheta, the chain k Gibbs sweeps from the data (CD-k)."""

    kind = "cd"
    needs_conditionals = True
    persistent: ClassVar[bool] = False

    sweeps: int = option(1, "k, Gibbs sweeps per step", low=1)

    def nets(
        self, config: Config, data: Tensor, energy: Energy | None = None, posterior: Posterior | None = None
    ) -> Nets:
        own = energy or config.model.energy(tuple(data.shape[1:]), learns_q=False)
        return Nets(modules.require_grbm(own, self.kind))

    def init(self, nets: Nets, key: philox.Key, v: Tensor, optimizer: Optimizer) -> State:
        state = super().init(nets, key, v, optimizer)
        return state._replace(chain={"v": v.clone()}) if self.persistent else state

    def draw(self, nets: Nets, key: philox.Key, rows: Rows) -> Noise:
        """Return "sweeps", a list of (uniform [B, H], normal [B, D])."""
        of_h, of_v = philox.purpose(philox.Purpose.CHAIN_H), philox.purpose(philox.Purpose.CHAIN_V)
        h = philox.streams(philox.uniform, self.sweeps, key, of_h, rows.samples, (nets.energy.latent,), **rows.place)
        v = philox.streams(philox.normal, self.sweeps, key, of_v, rows.samples, rows.shape, **rows.place)
        return {"sweeps": list(zip(h, v, strict=True))}

    def _gradient(
        self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]:
        # A process moves its own chains. It has the others' as well, as old as the last checkpoint.
        start = state.chain["v"][collectives.local_slice(len(state.chain["v"]))] if self.persistent else v
        model_v, _ = modules.sweep(state.theta.params, start, noise["sweeps"])

        def contrast(theta: Params) -> tuple[Tensor, Tensor]:
            energy = nets.energy.at(theta)
            loss = energy.free_energy(v).mean() - energy.free_energy(model_v).mean()
            return loss, loss.detach()

        gradient, loss = autodiff.grad(contrast, state.theta.params)
        chain = {"v": with_local_rows(state.chain["v"], model_v)} if self.persistent else {}
        return gradient, state._replace(chain=chain), {"loss": loss}

    def validation(self, nets: Nets, state: State, v: Tensor, noise: Noise, size: int | None = None) -> Tensor:
        """Return the squared error of one-sweep reconstruction, the usual early-stopping signal of CD."""
        _, mean = modules.sweep(state.theta.params, v, noise["sweeps"][:1])
        return (v - mean).square().sum(-1).mean()


class Pcd(Cd):
    """CD whose chain goes on from where the last step left it (PCD-k); it starts at the first minibatch."""

    kind = "pcd"
    persistent = True


def with_local_rows(chain: Tensor, moved: Tensor) -> Tensor:
    if collectives.size() == 1:
        return moved
    chain = chain.clone()
    chain[collectives.local_slice(len(chain))] = moved
    return chain
