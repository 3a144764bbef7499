"""BiDVL's nets as options of a run: an energy with spectral normalisation, an encoder, a generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eblvm.engine.models.kinds import ModelOptions
from eblvm.engine.options import option

if TYPE_CHECKING:
    from eblvm.engine.models.bidvl import Nets


@dataclass(frozen=True)
class Spectral(ModelOptions):
    images = generates = True
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

    def nets(self, shape: tuple[int, ...], joint: bool) -> Nets:
        """Energy, encoder and generator for images of `shape`; a joint energy reads h too."""
        from eblvm.engine.models.bidvl import nets_for

        return nets_for(self, shape, joint)


@dataclass(frozen=True)
class SnConv(Spectral):
    kind = "sn-conv"


@dataclass(frozen=True)
class SnResnet(Spectral):
    kind = "sn-resnet"
