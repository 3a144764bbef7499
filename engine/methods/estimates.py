"""The contracts of what score matching is a product of: an estimator of the score, and a loss on its estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from eblvm.engine.methods.base import Gradient, Info, Nets, Noise, Rates, Rows, State, empty_weights
from eblvm.engine.optim.base import Weights
from eblvm.engine.options import Options
from eblvm.engine.types import Params

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Posterior
    from eblvm.kernels.philox import Key


class Batch(NamedTuple):
    """Data as a loss sees it: v (perturbed), the noise eps it was perturbed by, and sigma broadcastable to v."""

    v: Tensor
    eps: Tensor
    sigma: Tensor
    lower_weight: Tensor  # of each sample in the lower level's loss, [B] or []


class Features(NamedTuple):
    """One pass of the network: f = features(v), and `pull(u, keep=False)`, which is u^T df/dv."""

    f: Any
    pull: Callable[..., Any]


class ScoreEstimate(NamedTuple):
    """An estimate of log p(v) up to a constant, a function of v [B] with all else held fixed, and of its score [B, D].

    Closed forms, where a model has them: `laplacian` is tr grad^2 log p(v) [B]; `sliced` maps directions u [M, B, D] to
    (1/2 |s|^2 [B], u^T grad^2 log p(v) u [M, B])."""

    log_density: Callable[[Tensor], Tensor] | None  # none: an estimate of the score only
    score: Callable[[], Tensor]
    laplacian: Callable[[], Tensor] | None = None
    sliced: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    info: Info = {}  # noqa: RUF012


class Estimator(Options):
    """An estimate of the marginal score in two halves. `respond` is where samples meet: it sees the network through its
    features f only. `estimate` goes sample by sample. So one pass of the network is enough for all steps on q, and no
    estimator has code of its own for chunks."""

    group = "method"
    prefix: ClassVar[str] = ""
    learns_q: ClassVar[bool] = False
    scales_gradients: ClassVar[bool] = True  # can run in fp16
    plans: ClassVar[bool] = False
    reads_features: ClassVar[bool] = True  # of one pass of the network

    @property
    def attached(self) -> bool:
        """Does the response depend on theta and f?"""
        return False

    @property
    def batches_per_step(self) -> int:
        """The number of perturbed batches that it reads."""
        return 1

    def rates(self) -> dict[str, float | None]:
        return {}

    def nets(self, config: Config, energy: Energy, posterior: Posterior | None, shape: tuple[int, ...]) -> Nets:
        """Return the modules for an energy, with the posterior that was given or the estimator's own."""
        return Nets(energy)

    def init_phi(self, nets: Nets, key: Key) -> Weights:
        return empty_weights()

    def draw(self, nets: Nets, key: Key, rows: Rows) -> Noise:
        return {}

    def respond(
        self, nets: Nets, theta: Params, f: Any, phi: Weights, batches: Sequence[Batch], noise: Noise, rates: Rates
    ) -> tuple[Any, Weights, Info]:
        """Return q's answer to the last batch, phi moved by its real steps, and what is logged. `batches` has one batch
        (shared noise: the same empirical lower objective in every step) or one per step (fresh noise); f are the
        features of the last."""
        return {}, phi, {}

    def estimate(
        self, nets: Nets, theta: Params, response: Any, features: Features, batch: Batch, noise: Noise, rates: Rates
    ) -> ScoreEstimate:
        raise NotImplementedError

    def without_steps(self) -> Estimator:
        """Return the same estimator without any step on q."""
        return self

    def diagnostics(self, nets: Nets, state: State, batch: Batch, noise: Noise) -> Info:
        return {}

    def fused(self, nets: Nets, loss: Loss, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        return None


class Loss(Options):
    """A score matching loss: it perturbs the data, then reduces a `ScoreEstimate` to one value per sample. Everything
    is a mean over the batch of sums over the visible axes; the factor 1/2 is kept in all losses, so that they estimate
    Fisher divergences."""

    group = "method"
    estimators: ClassVar[tuple[str, ...]] = ()  # that give what it reads, by kind
    perturbs: ClassVar[bool] = False  # it adds noise to the data
    pairs_samples: ClassVar[bool] = False  # its terms are of pairs: an even batch
    micro_batches: ClassVar[bool] = True  # its terms are of single samples, so its gradient can be computed in chunks
    derivatives: ClassVar[int] = 2  # of the energy, with the one of training
    scales_gradients: ClassVar[bool] = False  # can run in fp16 with a loss scale

    @property
    def blur(self) -> float:
        """The noise level of the density whose score it learns; 0: that of the data itself."""
        return 0.0

    def draw(self, key: Key, rows: Rows) -> Noise:
        """Return the loss's own noise, besides that of the perturbation."""
        return {}

    def perturb(self, v: Tensor, eps: Tensor, noise: Noise) -> Batch:
        """Return the data with the noise eps [B, ...], which is zero unless the loss `perturbs`."""
        return Batch(v, eps, v.new_ones(v[:1].shape), v.new_ones(()))

    def __call__(self, estimate: ScoreEstimate, batch: Batch, noise: Noise) -> Tensor:
        """Return the loss of every sample [B]."""
        raise NotImplementedError

    def logged(self, loss_B: Tensor, noise: Noise) -> Info:
        """Return what a log shows besides the mean."""
        return {}
