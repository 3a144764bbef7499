"""The contract of a training method as an option of a run: its options, what it can do, and how its step is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.options import Options

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.update import Update
    from eblvm.engine.models.base import Model
    from eblvm.engine.nets.base import Energy
    from eblvm.engine.nets.posteriors import Posterior
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running


@dataclass(frozen=True)
class Method(Options):
    group = "method"
    learns_q: ClassVar[bool] = False  # it has a posterior q(h|v; phi), of a model with latent units
    needs_conditionals: ClassVar[bool] = False  # it needs p(h|v), p(v|h) or the free energy in closed form
    pairs_samples: ClassVar[bool] = False  # its loss is of pairs of samples: an even batch
    micro_batches: ClassVar[bool] = False  # its gradient can be taken over parts of a batch
    fused_step: ClassVar[bool] = False  # it has a hand-written step on a GRBM
    compiles: ClassVar[bool] = True
    generates: ClassVar[bool] = False  # it trains a generator
    plans: ClassVar[bool] = False  # `eblvm plan` can count its step
    energy_limit: ClassVar[float | None] = None  # above which logged energies have run away

    @property
    def lower_lr(self) -> float | None:
        """The learning rate of phi; none: that of theta."""
        return None

    @property
    def unroll_lr(self) -> float | None:
        """The step size of unrolled steps; none: that of phi."""
        return None

    @property
    def blur(self) -> float:
        """The noise level of the density that the model learns; 0: that of the data itself."""
        return 0.0

    def check(self, model: Model, optimisation: Optimisation, running: Running) -> None:
        """Every mistake that can be seen without data, as one sentence each."""
        if model.generates != self.generates:
            wanted = "needs a model with a generator" if self.generates else "trains no generator"
            raise UserError(
                f"method {self.kind!r} {wanted}, got model {model.kind!r}; methods and models with a generator belong "
                "together, on a recipe of images"
            )
        if self.needs_conditionals and not model.conditionals:
            raise UserError(
                f"method {self.kind!r} needs the GRBM's conditionals or its normaliser, model {model.kind!r} has "
                "neither; use a score matching method"
            )
        if self.pairs_samples and optimisation.batch % 2:
            raise UserError(
                f"method {self.kind!r} pairs the halves of a batch, got batch={optimisation.batch}, expected an even "
                "number"
            )

    def build(
        self,
        model: Model,
        optimisation: Optimisation,
        train: Tensor,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
    ) -> Update:
        """The training step on samples like `train` [n, ...], with the model's own nets or with those given."""
        raise NotImplementedError


def check_eager(optimisation: Optimisation, running: Running) -> None:
    """What micro-batches cannot be combined with."""
    if running.compile or optimisation.replicated:
        raise UserError("micro-batch is for the eager, single run; remove it, or --compile and --replicas")
