"""Score matching losses, one a file: each a function of a score estimate at (perturbed) data, with its options.

A loss perturbs the data, then reduces a `ScoreEstimate` to one value per sample. Everything is a mean over the batch of
sums over the visible axes; the factor 1/2 is kept in all of them, so that they estimate Fisher divergences. A new loss
is a new file here: `KINDS` finds it, and every estimator that it names becomes a method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from eblvm.engine.methods.types import Batch, DrawShape, Info, Noise, ScoreEstimate
from eblvm.engine.options import Options, discovered

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.kernels.philox import Key


@dataclass(frozen=True)
class Loss(Options):
    """The contract, and what a loss may say of itself."""

    group = "method"
    estimators: ClassVar[tuple[str, ...]] = ()  # that give what it reads, by kind
    perturbs: ClassVar[bool] = False  # it adds noise to the data
    pairs_samples: ClassVar[bool] = False  # its terms are of pairs: an even batch, not split into micro-batches
    derivatives: ClassVar[int] = 2  # of the energy, with the one of training
    scales_gradients: ClassVar[bool] = False  # can run in fp16 with a loss scale
    batch_axes: ClassVar[dict[str, int]] = {}  # of the noise that `draw` gives, by name

    @property
    def blur(self) -> float:
        """The noise level of the density whose score it learns; 0: that of the data itself."""
        return 0.0

    def draw(self, key: Key, shape: DrawShape) -> Noise:
        """The loss's own noise, beside that of the perturbation."""
        return {}

    def perturb(self, v: Tensor, eps: Tensor | None, noise: Noise) -> Batch:
        """The data as they are."""
        return Batch(v, v.new_zeros(v.shape), v.new_ones(v[:1].shape), v.new_ones(()))

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> Tensor:
        """The loss of every sample [B]."""
        raise NotImplementedError

    def logged(self, loss_B: Tensor, noise: Noise) -> Info:
        """What a log shows beside the mean."""
        return {}


def half_square(x: Tensor) -> Tensor:
    """1/2 |x|^2 of every sample [B]."""
    return 0.5 * x.square().flatten(1).sum(1)


KINDS = discovered(__name__, __path__, Loss)
