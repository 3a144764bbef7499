"""The contract of an energy-based latent variable model, p(v, h) ~ exp(-E(v, h)).

Every energy is written as E(v, h) = head(features(v), h). `features` holds what does not depend on h (for a deep
model nearly all of the cost), so that one pass of it serves every sample of h and every step on the posterior.
An energy without structure lets `features` be the identity.
"""

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from eblvm.kernels.philox import Key

Params = dict[str, Tensor]


class Model(nn.Module):
    """A module whose methods are all callable with explicit parameters, see `call`."""

    def forward(self, method: str, *args: Any) -> Any:
        return getattr(self, method)(*args)


class Energy(Model):
    """E(v, h) = head(features(v), h).

    `features(v)` gives a tensor or a tuple of tensors, `head(f, h)` gives e[..., B] for h[..., B, H]: leading axes
    of h are samples that share one f. Optional: `free_energy(v)` = -log sum_h exp(-E(v, h)) and exact conditionals.
    """

    def initial(self, key: Key) -> Params:
        """theta at the start, from the noise of `key`."""
        raise NotImplementedError

    def features(self, v: Tensor) -> Any:
        return v

    def head(self, f: Any, h: Tensor) -> Tensor:
        raise NotImplementedError

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        return self.head(self.features(v), h)


def call(model: Model, params: Params, method: str, *args: Any) -> Any:
    """`model.method(*args)` with `params` in the place of the module's own: a pure function of its arguments."""
    return functional_call(model, params, (method, *args))
