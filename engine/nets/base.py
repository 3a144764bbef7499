"""Contracts of nets: `at`, which binds a net to explicit parameters, and the functions of an energy.

Every energy is written as E(v, h) = head(features(v), h). `features` computes all that does not depend on h (for a deep
model nearly all of the cost), so that every sample of h and every step on the posterior use one pass of it. An energy
without structure uses the identity as `features`.
"""

from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose

Module = TypeVar("Module", bound=nn.Module)


class Net(nn.Module):
    """A net with explicit parameters: `net.at(theta).features(v)` is a pure function of theta and v."""

    micro_batch: int | None = None  # samples that go through the net at once, of nets that can split a batch; none: all

    def at(self, params: Params) -> Self:
        """Return a view of this net with `params` as its parameters and buffers; those not in `params` stay its own.

        The view is a new object of the same class that shares everything else. Nothing is swapped or restored, so
        views nest, outlive the call, and pass through grad, vjp, vmap and compile as the tensors in them. Make one view
        per function: for a deep net it takes a tenth of a millisecond."""
        return bound(self, params, self._ties, "")

    @property
    def _ties(self) -> dict[str, str]:
        """Map the names of tensors that are shared inside this net to their names in `params`."""
        known: dict[str, str] | None = self.__dict__.get("_known_ties")
        if known is None:
            first: dict[Tensor, str] = {}
            named = [*self.named_parameters(remove_duplicate=False), *self.named_buffers(remove_duplicate=False)]
            known = {name: first[x] for name, x in named if first.setdefault(x, name) != name}
            if not torch.compiler.is_compiling():
                self.__dict__["_known_ties"] = known
        return known

    def initial(self, key: Key) -> Params:
        """Return the initial parameters: the module's own, or drawn from the noise of `key`."""
        return {name: p.detach().clone() for name, p in self.named_parameters()}


class Energy(Net):
    """E(v, h) = head(features(v), h).

    `features(v)` returns a tensor or a tuple of tensors, `head(f, h)` returns e[..., B] for h[..., B, H]: leading axes
    of h are samples that share one f. Optional: `free_energy(v)` = -log sum_h exp(-E(v, h)) and exact conditionals.
    `frozen` names parameters that training does not change."""

    frozen: tuple[str, ...] = ()
    # What some energies have as well: the number of latent units, F(v), p(h|v) as a linear posterior, E_q[head].
    latent: int
    free_energy: Callable[[Tensor], Tensor]
    linear_posterior: Callable[[], Params]
    expected: Callable[..., Any]

    @property
    def has_expectations(self) -> bool:
        """Return whether the head can compute its mean over a Gaussian q; see `CoupledHead`."""
        return False

    def features(self, v: Tensor) -> Any:
        return v

    def head(self, f: Any, h: Tensor) -> Tensor:
        raise NotImplementedError

    def energy(self, v: Tensor, h: Tensor) -> Tensor:
        return self.head(self.features(v), h)


class Separable(Energy):
    """An energy from a pair of modules: features(v) -> f, a tensor or a tuple of them, and head(f, h) -> e[..., B].

    `nn.Identity()` as the features makes an energy without structure. The initial parameters are the modules' own."""

    def __init__(self, features: nn.Module, head: nn.Module):
        super().__init__()
        self.feature_net, self.head_net = features, head

    def features(self, v: Tensor) -> Any:
        return self.feature_net(v)

    def head(self, f: Any, h: Tensor) -> Tensor:
        return self.head_net(f, h)

    @property
    def has_expectations(self) -> bool:
        return hasattr(self.head_net, "expected_slope")

    def expected(self, derivative: str, *args: Any) -> Tensor:
        """Call the head's `expected_head`, `expected_pull`, `expected_slope` or `expected_curvature`."""
        return getattr(self.head_net, f"expected_{derivative}")(*args)


def fan_in_uniform(model: nn.Module, key: Key, of: Purpose) -> Params:
    """Draw every weight and bias of linear and convolutional layers uniform in +-1/sqrt(fan in), by the noise of `key`.

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


def bound(module: Module, params: Params, ties: dict[str, str], prefix: str) -> Module:
    def tensors(own: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
        return {k: x if x is None else _tensor(params, ties, prefix + k, x) for k, x in own.items()}

    view: Module = object.__new__(type(module))
    view.__dict__.update(module.__dict__)
    view.__dict__["_parameters"] = tensors(module._parameters)  # type: ignore[arg-type]
    if module._buffers:
        view.__dict__["_buffers"] = tensors(module._buffers)
    if module._modules:
        view.__dict__["_modules"] = {
            k: child if child is None else bound(child, params, ties, f"{prefix}{k}.")
            for k, child in module._modules.items()
        }
    return view


def _tensor(params: Params, ties: dict[str, str], name: str, own: Tensor) -> Tensor:
    if name in params:
        return params[name]
    return params.get(ties[name], own) if name in ties else own
