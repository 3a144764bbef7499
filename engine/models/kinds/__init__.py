"""The models that a run can train, one a file: their options, what they can do, and how they are built.

A new model is a new file here; `KINDS` finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.options import Options, discovered

if TYPE_CHECKING:
    from eblvm.engine.models.energy import Energy
    from eblvm.engine.optim.options import Optimisation
    from eblvm.engine.running import Running


@dataclass(frozen=True)
class ModelOptions(Options):
    """The contract, and what a model may say of itself."""

    group = "model"
    latent: ClassVar[int] = 0  # H
    precision: ClassVar[str] = "fp32"
    checkpoint: ClassVar[str] = "none"
    channels_last: ClassVar[bool] = False
    activation: ClassVar[str] = ""

    continuous_h: ClassVar[bool] = True  # h is real: it has gradients, and a Gaussian q
    linear_in_h: ClassVar[bool] = False  # binary h, an energy linear in it
    exact_kl: ClassVar[bool] = False  # the energy's mean over q is known in closed form, so is the KL
    conditionals: ClassVar[bool] = False  # p(h|v) and p(v|h) are known, so is the free energy
    score_matching: ClassVar[bool] = True
    needs_q: ClassVar[bool] = False  # its marginal is intractable, and it has no form without h
    images: ClassVar[bool] = False  # it takes [C, S, S], not [D]
    points: ClassVar[bool] = False  # it takes points [D] and has a continuous h
    own_posterior: ClassVar[bool] = True  # the posterior is one of the engine's
    given_posterior: ClassVar[bool] = False  # the posterior comes from the user
    generates: ClassVar[bool] = False  # it has a generator
    fused_step: ClassVar[bool] = False  # some methods have a hand-written step on it
    plans: ClassVar[bool] = False  # memory is worth a plan: checkpointing and micro-batches

    def energy(self, shape: tuple[int, ...], learns_q: bool) -> Energy:
        """The energy for samples of `shape`; for a method without q a deep model has no h."""
        raise NotImplementedError

    def check(self, optimisation: Optimisation, running: Running) -> None:
        """Every mistake that can be seen without data, as one sentence each."""


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise UserError(f"a deep model needs images [channels, height, width], got samples of shape {list(shape)}")
    return shape[0], shape[1], shape[2]


KINDS = discovered(__name__, __path__, ModelOptions)
