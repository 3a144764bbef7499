"""What methods pass to each other: perturbed batches, estimates of the score, the training state, an objective.

Files that declare options import this one, so torch is imported for type checkers only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.autodiff.derivatives import Finish
    from eblvm.engine.optim.optimizers import Moments
    from eblvm.engine.types import Params
    from eblvm.kernels.philox import Key

Rates = dict[str, "Tensor"]  # 0-dimensional learning rates: "theta", "phi", "unroll"; in fp16 "scale", of gradients
Info = dict[str, "Tensor"]
Noise = dict[str, Any]


class Batch(NamedTuple):
    """Data as a loss sees it: v (perturbed), the noise eps it was perturbed by, and sigma broadcastable to v."""

    v: Tensor
    eps: Tensor
    sigma: Tensor
    lower_weight: Tensor  # of each sample in the lower level's loss, [B] or []


class ScoreEstimate(NamedTuple):
    """An estimate of log p(v) up to a constant, a function of v [B] with all else held fixed, and of its score [B, D].

    Closed forms, where a model has them: `laplacian` is tr grad^2 log p(v) [B]; `sliced` maps directions u [M, B, D] to
    (1/2 |s|^2 [B], u^T grad^2 log p(v) u [M, B])."""

    log_density: Callable[[Tensor], Tensor] | None  # none: an estimate of the score only
    score: Callable[[], Tensor]
    laplacian: Callable[[], Tensor] | None = None
    sliced: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None


class DrawShape(NamedTuple):
    """Whose noise is drawn: samples first .. first + samples - 1 of a global batch of `total`, for every replica."""

    samples: int
    shape: tuple[int, ...]  # of one sample
    first: int
    total: int
    replicas: tuple[int, ...]
    dtype: Any
    device: Any

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments that every Philox distribution takes."""
        return {"first": self.first, "dtype": self.dtype, "device": self.device}


class State(NamedTuple):
    """Everything that training changes; with replicas every tensor has a leading replica axis."""

    theta: Params
    phi: Params  # empty where a method has no posterior
    theta_opt: Moments
    phi_opt: Moments
    chain: Params  # persistent Markov chains, empty without
    ema: Params  # moving average of theta, empty without
    scale: Params = {}  # of the loss in fp16, empty without  # noqa: RUF012
    buffers: Params = {}  # what nets hold beside parameters: running statistics, spectral vectors  # noqa: RUF012
    phi_ema: Params = {}  # moving average of phi, empty without  # noqa: RUF012


class Objective(Protocol):
    """One training method on one model.

    `init` makes a start from a key; `draw` makes all noise of a step for samples first .. first + B - 1 of a global
    batch of `total` (none: v is the end of it);
    `gradient` is pure: (state, batch, noise, rates) -> (gradient for theta, state with phi and chain moved, info).
    `validation` is the method's own loss at fixed noise, without any step, to choose the best model by.
    """

    def init(self, key: Key, v: Tensor) -> State: ...
    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise: ...
    def gradient(self, state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[Params, State, Info]: ...
    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor: ...


@runtime_checkable
class OverlappingObjective(Protocol):
    """An objective whose `gradient` gives each parameter's to `finish` (see `grad`) as soon as backward has completed
    it, and returns what it gets for it: several processes then reduce it while backward goes on."""

    overlaps: ClassVar[bool]

    def gradient(
        self, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
    ) -> tuple[Params, State, Info]: ...
