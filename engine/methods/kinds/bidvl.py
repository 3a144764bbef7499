"""Bi-level doubly variational learning (Kan et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.errors import UserError
from eblvm.engine.methods.estimators.bism import SYNC_HELP, UNROLL_MEMORY_HELP
from eblvm.engine.methods.method import Method, check_eager
from eblvm.engine.models.spectral import Spectral
from eblvm.engine.options import option

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.update import Update
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running


@dataclass(frozen=True)
class Bidvl(Method):
    kind = "bidvl"
    learns_q = generates = plans = micro_batches = True
    energy_limit = 1e3  # energies of spectrally normalised nets are some tens in health

    K: int = option(1, "real lower steps on encoder and generator per minibatch", low=1)
    N: int = option(0, "unrolled lower steps that the upper gradient flows through", low=0)
    lower_lr: float | None = option(
        None, "Adam's learning rate for encoder and generator; none: that of the energy", above=0
    )
    weight_decay: float = option(0.0, "L2 in the gradient of encoder and generator", low=0)
    unroll_memory: str = option("store", UNROLL_MEMORY_HELP, choices=("store", "recompute"))
    sync: str = option("global", SYNC_HELP, choices=("global", "local"))
    energy: str = option("decoupled", "E(v) beside q(h|v), or one E(v, h) of both", choices=("decoupled", "joint"))
    divergence: str = option("symmetric", "lower level's divergence; 'kl' is AdVIL's form", choices=("symmetric", "kl"))
    opposite: str = option(
        "offset",
        "the terms D(p||q) of both levels that oppose each other: offset (Eq. 13-14), complete with the stable upper "
        "term (Eq. 11, section 4.4), literal with its own (Eq. 11-12), or none of them",
        choices=("offset", "complete", "literal", "none"),
    )
    latent_term: str = option(
        "mean",
        "that D(p||q) as the squared error of h, its mean or its sum over the units, as the released programs have it, "
        "or as the negative log density",
        choices=("mean", "sum", "density"),
    )
    latent_weight: float = option(1.0, "factor of that D(p||q)", low=0)
    ratio: float = option(0.05, "r', the mean importance ratio of data in the lower level", above=0)
    ratio_bias: str = option(
        "none",
        "its factor by sample (Eq. 15): none, a sigmoid, or clamped to 0.8 .. 1.2",
        choices=("none", "sigmoid", "clamped"),
    )
    power_iteration: str = option(
        "step",
        "of spectral norms: one per training step, or one in every pass of a net as in the released programs",
        choices=("step", "pass"),
    )
    upper: str = option("plain", "upper level: Eq. 14, or its hinge form (Eq. 23)", choices=("plain", "hinge"))

    @property
    def joint(self) -> bool:
        return self.energy == "joint"

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        super().check(model, optimisation, running)
        if self.joint and self.opposite != "none":
            raise UserError(
                "the opposite terms come from decoupling the energy, a joint one has none; add --opposite none"
            )
        if self.divergence == "kl" and not self.joint and self.opposite in ("offset", "none"):
            raise UserError(
                f"with divergence 'kl' and opposite {self.opposite!r} no term is left that trains the encoder; "
                "use --opposite complete, or --divergence symmetric"
            )
        if running.micro_batch is not None:
            check_eager(optimisation, running)
        if self.unroll_memory == "recompute" and running.compile:
            raise UserError(
                "--unroll-memory recompute rebuilds a graph that a compiled step does not have; remove it or --compile"
            )
        unrolls_deeply = self.N > 1 or self.unroll_memory == "recompute"
        if unrolls_deeply and model.channels_last and running.dtype == "float64":
            raise UserError(
                "torch's convolutions of float64 in channels_last order cannot be unrolled twice or recomputed; remove "
                "--channels-last, or use --dtype float32"
            )
        if self.upper == "hinge" and isinstance(model, Spectral) and model.output == "softplus":
            raise UserError("a softplus energy never passes the hinge at -1; add --output real")

    def build(
        self,
        model: Model,
        optimisation: Optimisation,
        train: Tensor,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
    ) -> Update:
        from eblvm.engine.methods.alternating import AlternatingUpdate
        from eblvm.engine.methods.bidvl import BidvlObjective

        if energy or posterior:
            raise UserError("method 'bidvl' trains its own three nets; remove `energy` and `posterior`")
        assert isinstance(model, Spectral)
        nets = model.nets(tuple(train.shape[1:]), self.joint)
        optimizers = optimisation.theta_optimizer(), optimisation.phi_optimizer(self.weight_decay)
        return AlternatingUpdate.of(BidvlObjective(self, *nets, *optimizers), optimisation)
