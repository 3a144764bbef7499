"""The deep EBLVM and the deep EBM for images as options of a run."""

from __future__ import annotations

from typing import ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.models.base import PRECISIONS, Model
from eblvm.engine.nets import deep as modules
from eblvm.engine.options import Options, declared, option, slot

DEPTHS = (12, 18, 24)
CHECKPOINTS = ("none", "blocks", "all")
ACTIVATIONS = ("elu", "softplus", "silu", "relu")
PIECEWISE_LINEAR = ("relu",)  # no second derivative: nothing to unroll through


class Network(Options):
    """Build of the networks: as in the papers, or with fewer layers that cost more than they give."""

    group = "model"
    published_network: ClassVar[bool] = False
    lean_network: ClassVar[bool] = False

    def head_units(self, shape: tuple[int, int, int], width: int) -> int:
        raise NotImplementedError


class Lean(Network):
    kind = "lean"
    lean_network = True

    head_width: int = option(128, "width of the energy's last layer", low=1)

    def head_units(self, shape: tuple[int, int, int], width: int) -> int:
        return self.head_width


class Published(Network):
    """As in BiSM appendix B.2 and VaGES F.2.2: a 1x1 convolution on every shortcut, a head of (S/8)^2 4 width."""

    kind = "published"
    published_network = True

    def head_units(self, shape: tuple[int, int, int], width: int) -> int:
        return 4 * width * (shape[1] // 8) * (shape[2] // 8)


NETWORKS = declared(Network, (Lean, Published))


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise UserError(f"a deep model needs images [channels, height, width], got samples of shape {list(shape)}")
    return shape[0], shape[1], shape[2]


class Deep(Model):
    kind = "deep"
    images = plans = exact_kl = True
    checkpoints = CHECKPOINTS

    latent: int = option(50, "H, the number of latent units", low=1)  # type: ignore[misc]
    width: int = option(128, "channels of the energy's first layer", low=1)
    depth: int = option(18, "3x3 convolutions of the energy", choices=DEPTHS)
    network: Network = slot(NETWORKS, "layers of energy and posterior: as in the papers, or fewer", Lean())
    activation: str = option("elu", "activation of the energy", choices=ACTIVATIONS)  # type: ignore[misc]
    precision: str = option(  # type: ignore[misc]
        "fp32", "of the networks; tf32: of CUDA's products, fp16: with a loss scale", choices=PRECISIONS
    )
    channels_last: bool = option(False, "images and convolutions in channels_last memory order")  # type: ignore[misc]
    checkpoint: str = option(  # type: ignore[misc]
        "none",
        "rebuild activations in backward, block by block, or within these layer by layer too; auto: as the plan for "
        "the device's memory says",
        choices=("auto", *CHECKPOINTS),
        mathematical=False,
    )

    def energy(self, shape: tuple[int, ...], learns_q: bool) -> modules.DeepEnergy:
        images, published = image_shape(shape), self.network.published_network
        latent = None if published and not learns_q else self.latent
        units = self.network.head_units(images, self.width)
        features = modules.ResNet(
            images, latent, self.width, self.depth, self.activation, self.checkpoint, self.precision,
            self.channels_last, self.network.kind,
        )  # fmt: skip
        if learns_q:
            return modules.DeepEnergy(features, modules.CoupledHead(self.latent, units))
        head = modules.QuadraticHead(features.flat) if published else modules.VisibleHead(self.latent, units)
        return modules.DeepEBM(features, head)
