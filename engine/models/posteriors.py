"""Variational posteriors q(h | v; phi)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from eblvm.engine.models.energy import Model, Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose


class Posterior(Model):
    """Contract of q(h | v): p = params(v), a reparameterised sample, its log density and its mean.

    `noise` is the Philox distribution that `rsample` expects; leading axes of the noise are samples that share one p.
    """

    latent: int
    noise: Callable[..., Tensor]

    def initial(self, key: Key) -> Params:
        """phi at the start, from the noise of `key`."""
        raise NotImplementedError

    def params(self, v: Tensor) -> Any:
        raise NotImplementedError

    def rsample(self, p: Any, noise: Tensor) -> Tensor:
        raise NotImplementedError

    def log_prob(self, p: Any, h: Tensor) -> Tensor:
        raise NotImplementedError

    def mean(self, p: Any) -> Tensor:
        raise NotImplementedError


class Bernoulli(Posterior):
    """q(h | v) = Bern(sigmoid(l)) with logits l = net(v); no hidden widths make it linear, l = v A + a.

    Samples are relaxed, h = sigmoid((l + logistic noise) / temperature) (binary Gumbel-Softmax), and log_prob is the
    Bernoulli one at that relaxed h, as in the published runs: log q(h|v) = sum h l - softplus(l).
    """

    noise = staticmethod(philox.logistic)

    def __init__(self, visible: int, latent: int, hidden: tuple[int, ...] = (), temperature: float = 0.1):
        super().__init__()
        self.visible, self.latent, self.temperature = visible, latent, temperature
        widths = (visible, *hidden, latent)
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out, device="meta"), nn.Softplus()]
        self.net = nn.Sequential(*layers[:-1])

    def initial(self, key: Key) -> Params:
        return fan_in_uniform(self, key)

    def params(self, v_BD: Tensor) -> Tensor:
        return self.net(v_BD)

    def rsample(self, logits_BH: Tensor, noise: Tensor) -> Tensor:
        return torch.sigmoid((logits_BH + noise) / self.temperature)

    def log_prob(self, logits_BH: Tensor, h: Tensor) -> Tensor:
        return (h * logits_BH - softplus(logits_BH)).sum(-1)

    def mean(self, logits_BH: Tensor) -> Tensor:
        return torch.sigmoid(logits_BH)


def fan_in_uniform(model: nn.Module, key: Key) -> Params:
    """Every weight and bias of the linear layers uniform in +-1/sqrt(fan in); leading axes are those of key.seed."""
    drawn: Params = {}
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Linear):
            for name, parameter in module.named_parameters(recurse=False):
                purpose = philox.purpose(Purpose.INIT_PHI, len(drawn))
                u = philox.uniform(key, purpose, parameter.shape[0], tuple(parameter.shape[1:]))
                drawn[f"{prefix}.{name}"] = (2 * u - 1) / module.in_features**0.5
    return drawn
