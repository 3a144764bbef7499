"""The models of a configuration: an energy and a posterior that fit each other and the data."""

from typing import TYPE_CHECKING

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.models.deep import CoupledHead, DeepEBM, DeepEnergy, ResNet, VisibleHead
from eblvm.engine.models.energy import Energy, call
from eblvm.engine.models.grbm import GRBM
from eblvm.engine.models.posteriors import Bernoulli, ConvGaussian, Posterior

if TYPE_CHECKING:
    from eblvm.engine.config import Config


def energy_for(config: "Config", shape: tuple[int, ...]) -> Energy:
    """The energy for samples of `shape`: [D], or [C, S, S] for a deep one."""
    if config.model == "grbm":
        return GRBM(shape[0], config.latent)
    if config.model == "custom":
        raise UserError("model 'custom' is an energy of your own, given to `train` in Python: see docs/models.md")
    features = ResNet(
        image_shape(shape),
        config.latent,
        config.width,
        config.depth,
        config.activation,
        config.checkpoint,
        config.precision,
        config.channels_last,
    )
    if config.variational:
        return DeepEnergy(features, CoupledHead(config.latent, config.head_width))
    return DeepEBM(features, VisibleHead(config.latent, config.head_width))


def posterior_for(config: "Config", shape: tuple[int, ...]) -> Posterior:
    if config.posterior == "conv":
        return ConvGaussian(image_shape(shape), config.latent, config.posterior_width, config.precision)
    hidden = (config.posterior_width,) if config.posterior == "mlp" else ()
    return Bernoulli(shape[0], config.latent, hidden, config.temperature)


def image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise UserError(f"a deep model needs images [channels, height, width], got samples of shape {list(shape)}")
    return shape[0], shape[1], shape[2]


def check_fit(energy: Energy, posterior: Posterior, shape: tuple[int, ...]) -> None:
    """See, on the meta device, that q's h is what the energy's head takes: before anything is allocated."""
    batch = 2
    v = torch.empty(batch, *shape, device="meta")
    theta, phi = ({k: p.detach().to("meta") for k, p in m.named_parameters()} for m in (energy, posterior))
    mean = posterior.mean(call(posterior, phi, "params", v))
    if mean.shape != (batch, posterior.latent):
        raise UserError(
            f"the posterior's mean of {batch} samples has shape {list(mean.shape)}, expected "
            f"{[batch, posterior.latent]} (its `latent` is {posterior.latent})"
        )
    f = call(energy, theta, "features", v)
    try:
        e = call(energy, theta, "head", f, mean)
    except RuntimeError as error:
        shapes = [list(t.shape) for t in torch.utils._pytree.tree_leaves(f)]
        raise UserError(
            f"the features {shapes} do not fit h {list(mean.shape)} in the energy's head ({error}); "
            "let features and posterior agree on the width of h"
        ) from None
    if e.shape != (batch,):
        raise UserError(f"the energy of {batch} samples has shape {list(e.shape)}, expected [{batch}]")
