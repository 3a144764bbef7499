"""Variational posteriors q(h | v; phi)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, distributions, nn
from torch.nn.functional import softplus

from eblvm.engine.autodiff.convolution import Convolution
from eblvm.engine.autodiff.mixed_precision import HALVES, autocast
from eblvm.engine.errors import UserError
from eblvm.engine.nets.base import Energy, Net, fan_in_uniform
from eblvm.engine.nets.prepared import prepared
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.elu_of_sum import joins
from eblvm.kernels.philox import Key, Purpose

PUBLISHED_CHANNELS = (64, 128, 256)


class Posterior(Net):
    """Contract of q(h | v): p = params(v), a reparameterised sample, its log density and its mean.

    `noise` is the Philox distribution that samples use; leading axes of the noise are samples that share one p.
    `sample` follows q exactly, `rsample` may relax it to have a derivative."""

    latent: int
    noise: Callable[..., Tensor]
    negative_entropy: Callable[[Any], Tensor]  # E_q log q(h | v), of those that know it

    def params(self, v: Tensor) -> Any:
        raise NotImplementedError

    def rsample(self, p: Any, noise: Tensor) -> Tensor:
        raise NotImplementedError

    def sample(self, p: Any, noise: Tensor) -> Tensor:
        return self.rsample(p, noise)

    def log_prob(self, p: Any, h: Tensor) -> Tensor:
        raise NotImplementedError

    def mean(self, p: Any) -> Tensor:
        raise NotImplementedError

    def distribution(self, p: Any) -> distributions.Distribution:
        """Return q(h | v) as a torch distribution over [B, H], for users."""
        raise UserError(f"{type(self).__name__} has no method distribution(p); add one, or call its other methods")


class Bernoulli(Posterior):
    """q(h | v) = Bern(sigmoid(l)) with logits l = net(v), which are linear without hidden widths, l = v A + a.

    Samples are relaxed, h = sigmoid((l + logistic noise) / temperature) (binary Gumbel-Softmax), and log_prob is the
    Bernoulli one at that relaxed h, as in the published runs: log q(h|v) = sum h l - softplus(l)."""

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
        return fan_in_uniform(self, key, Purpose.INIT_PHI)

    def params(self, v_BD: Tensor) -> Tensor:
        return self.net(v_BD)

    def rsample(self, logits_BH: Tensor, noise: Tensor) -> Tensor:
        return torch.sigmoid((logits_BH + noise) / self.temperature)

    def sample(self, logits_BH: Tensor, noise: Tensor) -> Tensor:
        """Return h in {0, 1}, 1 with probability sigmoid(l)."""
        return (logits_BH + noise > 0).to(logits_BH.dtype)

    def log_prob(self, logits_BH: Tensor, h: Tensor) -> Tensor:
        return (h * logits_BH - softplus(logits_BH)).sum(-1)

    def mean(self, logits_BH: Tensor) -> Tensor:
        return torch.sigmoid(logits_BH)

    def distribution(self, logits_BH: Tensor) -> distributions.Distribution:
        return distributions.Independent(distributions.Bernoulli(logits=logits_BH), 1)


class Gaussian(Posterior):
    """q(h | v) = N(mean, std^2), independent units, (mean, log std) = net(v) [B, 2H]."""

    noise = staticmethod(philox.normal)

    def __init__(self, net: nn.Module, latent: int):
        super().__init__()
        self.net, self.latent = net, latent

    def as_read(self, v: Tensor) -> Tensor:
        """Return v in the precision of the net, for several passes."""
        return v

    def raw_outputs(self, v: Tensor) -> Tensor:
        """Return (mean, log std), concatenated [B, 2H], in the precision of the net."""
        return self.net(v)

    def outputs(self, v: Tensor) -> Tensor:
        return self.raw_outputs(v).to(v.dtype)

    def params(self, v: Tensor) -> tuple[Tensor, Tensor]:
        mean_BH, log_std_BH = self.outputs(v).chunk(2, -1)
        return mean_BH, log_std_BH

    def rsample(self, p: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
        mean_BH, log_std_BH = p
        return mean_BH + torch.exp(log_std_BH) * noise

    def log_prob(self, p: tuple[Tensor, Tensor], h: Tensor) -> Tensor:
        """Return log q(h | v), without the constant -H/2 log 2 pi."""
        mean_BH, log_std_BH = p
        return -(0.5 * ((h - mean_BH) * torch.exp(-log_std_BH)).square() + log_std_BH).sum(-1)

    def mean(self, p: tuple[Tensor, Tensor]) -> Tensor:
        return p[0]

    def distribution(self, p: tuple[Tensor, Tensor]) -> distributions.Distribution:
        return distributions.Independent(distributions.Normal(p[0], p[1].exp()), 1)

    def negative_entropy(self, p: tuple[Tensor, Tensor]) -> Tensor:
        """Return E_q log q(h | v), without the constant that `log_prob` leaves out."""
        _, log_std_BH = p
        return -(0.5 + log_std_BH).sum(-1)


class Convolutional(Gaussian):
    """A Gaussian posterior of images, whose net may run in 16 bits."""

    def __init__(self, net: nn.Module, latent: int, precision: str):
        super().__init__(net, latent)
        self.precision = precision

    def initial(self, key: Key) -> Params:
        return fan_in_uniform(self, key, Purpose.INIT_PHI)

    def as_read(self, v: Tensor) -> Tensor:
        return v.to(HALVES.get(self.precision, v.dtype))

    def raw_outputs(self, v: Tensor) -> Tensor:
        if self.precision not in HALVES:
            return self.net(v)
        net = prepared(self.net, HALVES[self.precision]) if joins(v) else self.net
        with autocast(v, self.precision):
            return net(v)


class ConvGaussian(Convolutional):
    """A Gaussian posterior from three convolutions, which shrink the image to 1/4, to 1/8 and to one pixel."""

    def __init__(self, shape: tuple[int, int, int], latent: int, width: int, precision: str = "fp32"):
        channels, height, across = shape
        net = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=4, padding=2, device="meta"),
            nn.ELU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, device="meta"),
            nn.ELU(),
            nn.Conv2d(2 * width, 2 * latent, (height // 8, across // 8), device="meta"),
            nn.Flatten(),
        )
        super().__init__(net, latent, precision)


class StridedGaussian(Convolutional):
    """q(h | v) = N(mean, std^2): three 3x3 convolutions of stride 2 with LeakyReLU, linear layers to mean and log std.

    The two linear layers are one of twice the width. LeakyReLU has torch's slope, 0.01, as the papers give none."""

    def __init__(self, shape: tuple[int, int, int], latent: int = 50, precision: str = "fp32"):
        inputs, height, across = shape
        layers: list[nn.Module] = []
        for outputs in PUBLISHED_CHANNELS:
            layers += [Convolution(inputs, outputs, 3, stride=2, padding=1, device="meta"), nn.LeakyReLU()]
            inputs, height, across = outputs, (height + 1) // 2, (across + 1) // 2
        layers += [nn.Flatten(), nn.Linear(inputs * height * across, 2 * latent, device="meta")]
        super().__init__(nn.Sequential(*layers), latent, precision)


def check_fit(energy: Energy, posterior: Posterior, shape: tuple[int, ...]) -> None:
    """Check on the meta device, before anything is allocated, that q's h fits the energy's head."""
    batch = 2
    v = torch.empty(batch, *shape, device="meta")
    theta, phi = ({k: p.detach().to("meta") for k, p in m.named_parameters()} for m in (energy, posterior))
    mean = posterior.mean(posterior.at(phi).params(v))
    if mean.shape != (batch, posterior.latent):
        raise UserError(
            f"the posterior's mean of {batch} samples has shape {list(mean.shape)}, expected "
            f"{[batch, posterior.latent]} (its `latent` is {posterior.latent})"
        )
    f = energy.at(theta).features(v)
    try:
        e = energy.at(theta).head(f, mean)
    except RuntimeError as error:
        shapes = [list(t.shape) for t in torch.utils._pytree.tree_leaves(f)]
        raise UserError(
            f"the features {shapes} do not fit h {list(mean.shape)} in the energy's head ({error}); "
            "give features and posterior the same width of h"
        ) from None
    if e.shape != (batch,):
        raise UserError(f"the energy of {batch} samples has shape {list(e.shape)}, expected [{batch}]")
