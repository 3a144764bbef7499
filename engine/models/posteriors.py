"""The posteriors q(h|v) that a method with a lower level can learn, as options of a run."""

from __future__ import annotations

from typing import ClassVar

from eblvm.engine.errors import UserError
from eblvm.engine.models.base import Model
from eblvm.engine.models.deep import image_shape
from eblvm.engine.nets import mlp
from eblvm.engine.nets import posteriors as modules
from eblvm.engine.options import Kinds, Options, declared, option

TEMPERATURE_HELP = "Gumbel-Softmax temperature of q's samples"


class PosteriorOptions(Options):
    group = "model"
    exact: ClassVar[bool] = False  # it is the model's own p(h|v): there is nothing to learn
    linear: ClassVar[bool] = False  # its logits are a linear function of v

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        raise NotImplementedError


class Linear(PosteriorOptions):
    """q(h|v) = Bern(sigmoid(vA + a))."""

    kind = "linear"
    needs = ("linear_in_h", "own_posterior")
    linear = True

    temperature: float = option(0.1, TEMPERATURE_HELP, above=0)

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        return modules.Bernoulli(shape[0], model.latent, (), self.temperature)


class MlpLogits(PosteriorOptions):
    """A Bernoulli posterior whose logits are a net of one hidden layer."""

    kind = "mlp"
    needs = ("linear_in_h", "own_posterior")

    posterior_width: int = option(64, "hidden width of the mlp posterior", low=1)
    temperature: float = option(0.1, TEMPERATURE_HELP, above=0)

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        return modules.Bernoulli(shape[0], model.latent, (self.posterior_width,), self.temperature)


class Exact(Linear):
    kind = "exact"
    exact = True


class Conv(PosteriorOptions):
    kind = "conv"
    needs = ("images", "own_posterior", "lean_network")

    posterior_width: int = option(48, "channels of the posterior's first layer", low=1)

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        return modules.ConvGaussian(image_shape(shape), model.latent, self.posterior_width, model.precision)


class Strided(PosteriorOptions):
    """A Gaussian posterior from three strided convolutions of 64, 128 and 256 channels, as published."""

    kind = "strided"
    needs = ("images", "own_posterior", "published_network")

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        return modules.StridedGaussian(image_shape(shape), model.latent, model.precision)


class GaussianMlp(PosteriorOptions):
    kind = "gaussian-mlp"
    needs = ("points", "own_posterior")

    posterior_width: int = option(32, "units of the posterior's hidden layers", low=1)
    posterior_depth: int = option(2, "hidden layers of the posterior", low=1, high=100)

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        sizes = (model.latent, self.posterior_width, self.posterior_depth)
        return mlp.MlpGaussian(shape[0], *sizes, model.data_mean, model.data_std)


class Given(PosteriorOptions):
    kind = "given"
    needs = ("given_posterior",)

    def build(self, shape: tuple[int, ...], model: Model) -> modules.Posterior:
        raise UserError("model 'custom' needs a posterior of your own, given in Python: see docs/models.md")


KINDS = declared(PosteriorOptions, (Linear, MlpLogits, Exact, Conv, Strided, GaussianMlp, Given))
LEARNED = Kinds(lambda: [p for p in KINDS.values() if not p.exact])  # those with parameters of their own
