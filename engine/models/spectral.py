"""BiDVL's nets as options of a run: an energy with spectral normalisation, an encoder, a generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.models.base import PRECISIONS, Model
from eblvm.engine.nets import bidvl as modules
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.nets import Energy, Posterior
    from eblvm.engine.nets.bidvl import Generator


@dataclass(frozen=True)
class Normalised(Model):
    residual: ClassVar[bool] = False  # blocks as SNGAN has them

    images = generates = plans = True
    checkpoints = ("none", "blocks")  # a block is a layer or two: there is nothing to cut finer
    score_matching = own_posterior = False

    latent: int = option(100, "H, the number of latent units", low=1)  # type: ignore[misc]
    width: int = option(64, "channels of the energy's first layer", low=1)
    posterior_width: int = option(48, "channels of the encoder", low=1)
    generator_width: int = option(48, "channels of the generator", low=1)
    initial: str = option(
        "xavier", "weights at the start: Xavier's normal ones, or N(0, 0.02^2)", choices=("xavier", "normal")
    )
    output: str = option(
        "softplus", "energy above zero, or any real number, as the hinge needs", choices=("softplus", "real")
    )

    precision: str = option(  # type: ignore[misc]
        "fp32", "of the networks; tf32: of CUDA's products, fp16: with a loss scale", choices=PRECISIONS
    )
    channels_last: bool = option(False, "images and convolutions in channels_last memory order")  # type: ignore[misc]
    checkpoint: str = option(  # type: ignore[misc]
        "none",
        "rebuild activations in backward, block by block; auto: as the plan for the device's memory says",
        choices=("auto", *checkpoints),
        mathematical=False,
    )

    def generative(self, shape: tuple[int, ...], joint: bool) -> tuple[Energy, Posterior, Generator]:
        return modules.nets_for(self, shape, joint)


@dataclass(frozen=True)
class SnConv(Normalised):
    kind = "sn-conv"


@dataclass(frozen=True)
class SnResnet(Normalised):
    kind = "sn-resnet"
    residual = True
