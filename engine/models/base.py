"""The contract of a model: its options, what it can do, and how its energy is built."""

from __future__ import annotations

from typing import ClassVar

from eblvm.engine import nets
from eblvm.engine.nets import bidvl
from eblvm.engine.options import Options

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


class Model(Options):
    group = "model"
    latent: ClassVar[int] = 0  # H
    precision: ClassVar[str] = "fp32"
    checkpoint: ClassVar[str] = "none"
    checkpoints: ClassVar[tuple[str, ...]] = ("none",)  # that a plan may choose from, less memory and more work later
    channels_last: ClassVar[bool] = False
    activation: ClassVar[str] = ""
    data_mean: ClassVar[float] = 0.0  # of the data, which networks of points see centred and scaled
    data_std: ClassVar[float] = 1.0

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
    plans: ClassVar[bool] = False  # memory is worth a plan: checkpointing and micro-batches

    def energy(self, shape: tuple[int, ...], learns_q: bool) -> nets.Energy:
        """Return the energy for samples of `shape`; for a method without q a deep model has no h."""
        raise NotImplementedError

    def generative(self, shape: tuple[int, ...], joint: bool) -> tuple[nets.Energy, nets.Posterior, bidvl.Generator]:
        """Return energy, encoder and generator for images of `shape`; a joint energy reads h too."""
        raise NotImplementedError
