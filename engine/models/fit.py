"""Whether an energy and a posterior fit each other and the data."""

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.models.energy import Energy, call
from eblvm.engine.models.posteriors import Posterior


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
