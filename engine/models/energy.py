"""The contract of an energy-based latent variable model, p(v, h) ~ exp(-E(v, h)).

Every energy is written as E(v, h) = head(features(v), h). `features` holds what does not depend on h (for a deep
model nearly all of the cost), so that one pass of it serves every sample of h and every step on the posterior.
An energy without structure lets `features` be the identity.
"""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose


class Model(nn.Module):
    """A module whose methods are all callable with explicit parameters, see `call`."""

    def forward(self, method: str, *args: Any) -> Any:
        return getattr(self, method)(*args)

    @cached_property
    def ties(self) -> bool:
        """Do parts of it share a tensor? Looking for that takes longer than a small call."""
        named = [*self.named_parameters(remove_duplicate=False), *self.named_buffers(remove_duplicate=False)]
        return len({id(tensor) for _, tensor in named}) < len(named)

    def initial(self, key: Key) -> Params:
        """The parameters at the start: the module's own, or drawn from the noise of `key`."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}


class Energy(Model):
    """E(v, h) = head(features(v), h).

    `features(v)` gives a tensor or a tuple of tensors, `head(f, h)` gives e[..., B] for h[..., B, H]: leading axes
    of h are samples that share one f. Optional: `free_energy(v)` = -log sum_h exp(-E(v, h)) and exact conditionals.
    `frozen` names parameters that training leaves as they start.
    """

    frozen: tuple[str, ...] = ()

    @property
    def has_expectations(self) -> bool:
        """Does the head know its mean over a Gaussian q? See `Separable.expected`."""
        return False

    def features(self, v: Tensor) -> Any:
        return v

    def head(self, f: Any, h: Tensor) -> Tensor:
        raise NotImplementedError

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        return self.head(self.features(v), h)


class Separable(Energy):
    """An energy from a pair of modules: features(v) -> f, a tensor or a tuple of them, and head(f, h) -> e[..., B].

    `nn.Identity()` as the features makes an energy with no structure of its own. It starts from the parameters that
    the modules have.
    """

    def __init__(self, features: nn.Module, head: nn.Module):
        super().__init__()
        self.feature_net, self.head_net = features, head

    def features(self, v: Tensor) -> Any:
        return self.feature_net(v)

    def head(self, f: Any, h: Tensor) -> Tensor:
        return self.head_net(f, h)

    @property
    def has_expectations(self) -> bool:
        """Does the head know its mean over a Gaussian q? See `CoupledHead`."""
        return hasattr(self.head_net, "expected_slope")

    def expected(self, derivative: str, *args: Any) -> Tensor:
        """The head's `expected_head`, `expected_pull`, `expected_slope` or `expected_curvature`."""
        return getattr(self.head_net, f"expected_{derivative}")(*args)


def fan_in_uniform(model: nn.Module, key: Key, of: Purpose) -> Params:
    """Every weight and bias of linear and convolutional layers uniform in +-1/sqrt(fan in), from the noise of `key`.

    Leading axes are those of key.seed."""
    drawn: Params = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            fan_in = module.weight[0].numel()
            for name, parameter in module.named_parameters(recurse=False):
                purpose = philox.purpose(of, len(drawn))
                u = philox.uniform(key, purpose, parameter.shape[0], tuple(parameter.shape[1:]))
                drawn[f"{prefix}.{name}"] = (2 * u - 1) / fan_in**0.5
    return drawn


def call(model: Model, params: Params, method: str, *args: Any) -> Any:
    """`model.method(*args)` with `params` in the place of the module's own: a pure function of its arguments."""
    ties = torch.compiler.is_compiling() or model.ties
    return functional_call(model, params, (method, *args), tie_weights=ties)
