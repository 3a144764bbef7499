"""BiDVL's nets as options of a run: an energy with spectral normalisation, an encoder, a generator."""

from __future__ import annotations

from typing import ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.models.base import PRECISIONS, Model
from eblvm.engine.nets import batch_norm
from eblvm.engine.nets import bidvl as modules
from eblvm.engine.options import option


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

    def generative(
        self, shape: tuple[int, ...], joint: bool
    ) -> tuple[modules.SpectralEnergy, modules.Encoder, modules.Generator]:
        residual, latent = self.residual, self.latent
        sizes = modules.RESNET_SIZES if residual else tuple(modules.SMALLEST << n for n in range(1, 6))
        if len(shape) != 3 or shape[1] != shape[2] or shape[1] not in sizes:
            raise UserError(
                f"got samples of shape {list(shape)}, expected square images of {', '.join(map(str, sizes))} pixels "
                f"for model {self.kind!r}; give --size one of them"
                + (", or use --model sn-conv" if residual and len(shape) == 3 else "")
            )
        layers = (modules.Blocks if residual else modules.Convolutions)(shape[0], shape[1])
        trunk, encoder = layers.trunk(self.width), layers.encoder(self.posterior_width, latent)
        nets = (
            modules.SpectralEnergy(*trunk, latent if joint else 0, self.output == "softplus"),
            modules.Encoder(encoder, latent, layers.bounded_variance),
            modules.Generator(layers.generator(self.generator_width, latent)),
        )
        for net in nets:
            net.start, net.channels_last = modules.STARTS[self.initial], self.channels_last
            for module in net.modules():
                if isinstance(module, batch_norm.Sequence):
                    module.rebuilds = self.checkpoint == "blocks"
                    module.precision, module.channels_last = self.precision, self.channels_last
        return nets


class SnConv(Normalised):
    kind = "sn-conv"


class SnResnet(Normalised):
    kind = "sn-resnet"
    residual = True
