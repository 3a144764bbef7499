"""A gradient from chunks of its batch, equal to that of the whole: the network's memory is that of a chunk.

The upper loss is a mean over samples, but every sample's term reads phi_N, and phi_N reads all samples. It reads the
network only through the features f, B x dim(f) and small, so three passes do (F: one pass of the features):

    1. f chunk by chunk, without a graph (1 F); all K real and N unrolled steps at once, on the whole batch's f;
    2. the loss and its gradient for theta and phi_N, chunk by chunk (6 F);
    3. the cotangent of phi_N back through the unroll to theta and f, and that of f through the transposed Jacobian of
       the features, chunk by chunk (3 F, none where N = 0).

Samples keep their global positions: noise and MDSM's levels are slices of the whole batch's. BiDVL's nets, in which
batch norms make samples meet, go over chunks one by one (models/chunks.py).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from eblvm.engine.autodiff.derivatives import Finish, grad, vjp
from eblvm.engine.methods.bidvl import BidvlObjective
from eblvm.engine.methods.bilevel import BilevelScore, VariationalScore
from eblvm.engine.methods.score_matching import ScoreMatchingObjective, scales
from eblvm.engine.methods.types import Info, Noise, Rates, State
from eblvm.engine.methods.update import Update
from eblvm.engine.nets.base import Energy, call
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key


@dataclass(frozen=True)
class MicroBatched:
    """`objective`, whose noise is shared, with gradient and validation over chunks of at most `size` samples."""

    objective: ScoreMatchingObjective
    size: int
    overlaps: ClassVar[bool] = True

    def init(self, key: Key, v: Tensor) -> State:
        return self.objective.init(key, v)

    def draw(self, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
        return self.objective.draw(key, v, first, total)

    def gradient(
        self, state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
    ) -> tuple[Params, State, Info]:
        estimator = self.objective.estimator
        if isinstance(estimator, BilevelScore) and estimator.options.best_response.unrolls:
            return self._bilevel_gradient(estimator, state, v, noise, rates, finish)
        objective, gradient, upper_info = self.objective, None, None
        lower_info: Info = {}
        if isinstance(estimator, VariationalScore):
            state, lower_info = self._lower_steps(estimator, state, v, noise, rates)
            objective = replace(objective, estimator=estimator.without_steps())
        for chunk, chunk_noise, weight, last in self._chunks(v, noise):
            add = _adding(gradient, weight, finish if last else None)
            gradient, _, info = objective.gradient(state, chunk, chunk_noise, rates, add)
            upper_info = _plus(upper_info, info, weight)
        assert gradient is not None
        assert upper_info is not None
        return gradient, state, lower_info | upper_info

    def _lower_steps(
        self, estimator: VariationalScore, state: State, v: Tensor, noise: Noise, rates: Rates
    ) -> tuple[State, Info]:
        """The real steps on q, on the whole batch's features; the rest of VaGES is a mean over samples at that q."""
        _, rates = scales(state, rates)
        batches = self.objective.batches(v, noise)
        f = self._features(estimator.energy, state.theta, batches[0].v)
        phi, phi_opt, info = estimator.real_steps(
            state.theta, state.phi, state.phi_opt, lambda *_: f, batches, noise["latent"], rates
        )
        return state._replace(phi=phi, phi_opt=phi_opt), info

    @torch.no_grad()
    def _features(self, energy: Energy, theta: Params, v: Tensor) -> Any:
        """f of the whole batch, chunk by chunk and without a graph."""
        return tree_map(lambda *parts: torch.cat(parts), *(_features(energy, x, theta) for x in v.split(self.size)))

    def _bilevel_gradient(
        self,
        estimator: BilevelScore,
        state: State,
        v: Tensor,
        noise: Noise,
        rates: Rates,
        finish: Finish | None,
    ) -> tuple[Params, State, Info]:
        theta, energy = state.theta, estimator.energy
        scale, rates = scales(state, rates)
        batches = self.objective.batches(v, noise)
        lower = (batches, noise["latent"], rates)
        perturbed = batches[0].v.split(self.size)
        f = self._features(energy, theta, batches[0].v)
        phi, phi_opt, info = estimator.real_steps(theta, state.phi, state.phi_opt, lambda *_: f, *lower)
        unrolled, pull = vjp(
            lambda x: estimator.unrolled_steps(x[0], phi, phi_opt, lambda *_: x[1], *lower), (theta, f)
        )
        phi_N = tree_map(Tensor.detach, unrolled)

        pulls_back = bool(estimator.options.unrolled or estimator.options.posterior.exact)
        bars: Any = None  # of (theta, phi_N)
        upper_info: Any = None
        for chunk, chunk_noise, weight, last in self._chunks(v, noise):
            upper = partial(self._upper, estimator, chunk, chunk_noise, rates)
            of_theta = None if finish is None or pulls_back or not last else _of_first(len(theta), finish)
            bars, chunk_info = grad(upper, (theta, phi_N), scale, _adding(bars, weight, of_theta))
            upper_info = _plus(upper_info, chunk_info, weight)
        gradient, phi_bar = bars

        if pulls_back:
            upscale = 1.0 if scale is None else scale
            theta_bar, f_bar = pull(tree_map(lambda x: x * upscale, phi_bar))
            gradient = _plus(gradient, tree_map(lambda x: x / upscale, theta_bar))
            for i, x in enumerate(perturbed):
                _, pull_features = vjp(partial(_features, energy, x), theta)
                add = _adding(gradient, 1.0, finish if i == len(perturbed) - 1 else None, upscale)
                gradient = pull_features(_rows(f_bar, i * self.size, len(x)), finish=add)
        return gradient, state._replace(phi=phi, phi_opt=phi_opt), info | upper_info

    def _upper(
        self, estimator: BilevelScore, v: Tensor, noise: Noise, rates: Rates, x: tuple[Params, Params]
    ) -> tuple[Tensor, Info]:
        """The mean loss of a chunk as a function of theta and phi_N, each held fixed while the other moves."""
        theta, phi_N = x
        (batch,) = self.objective.batches(v, noise)
        f, pull = vjp(lambda x: _features(estimator.energy, x, theta), batch.v)
        estimate = estimator.estimate(theta, phi_N, f, pull, batch.v, noise["latent"][-1][0], rates)
        return self.objective.value(estimate, batch, noise)

    def validation(self, state: State, v: Tensor, noise: Noise) -> Tensor:
        chunks = self._chunks(v, noise)
        return torch.stack([self.objective.validation(state, x, n) * weight for x, n, weight, _ in chunks]).sum()

    def _chunks(self, v: Tensor, noise: Noise) -> list[tuple[Tensor, Noise, float, bool]]:
        """(samples, their noise, their fraction of the batch, is it the last) of every chunk."""
        starts = range(0, len(v), self.size)
        return [
            (x, _slice(noise, i, len(x), self.objective.batch_axes), len(x) / len(v), i + len(x) == len(v))
            for i, x in zip(starts, v.split(self.size), strict=True)
        ]


def micro_batched(update: Update, size: int | None) -> Update:
    """`update` over chunks of at most `size` samples; none: as it is."""
    if size is None:
        return update
    if isinstance(update.objective, BidvlObjective):
        return replace(update, objective=update.objective.micro_batched(size))
    assert isinstance(update.objective, ScoreMatchingObjective)  # the configuration allows no other
    return replace(update, objective=MicroBatched(update.objective, size))


def _features(energy: Energy, v: Tensor, theta: Params) -> Any:
    return call(energy, theta, "features", v)


def _slice(noise: Noise, first: int, count: int, batch_axes: dict[str, int]) -> Noise:
    return {k: _rows(value, first, count, batch_axes[k]) for k, value in noise.items()}


def _rows(tree: Any, first: int, count: int, axis: int = 0) -> Any:
    return tree_map(lambda x: x.narrow(axis, first, count), tree)


def _plus(total: Any, tree: Any, weight: float = 1.0) -> Any:
    """total + weight * tree, in the place of total; of no total yet, a new one."""
    if total is None:
        return tree_map(lambda x: x * weight, tree)
    return tree_map(lambda t, x: t.add_(x, alpha=weight), total, tree)


def _adding(total: Any, weight: float, finish: Finish | None, scale: Tensor | float | None = None) -> Finish:
    """The `finish` of a chunk's gradient: `_plus(total, gradient / scale, weight)`, given to `finish` in its turn."""
    leaves = None if total is None else tree_leaves(total)

    def add(i: int, g: Tensor) -> Tensor:
        found: Tensor = _plus(None if leaves is None else leaves[i], g if scale is None else g / scale, weight)
        return found if finish is None else finish(i, found)

    return add


def _of_first(count: int, finish: Finish) -> Finish:
    """`finish` for the first `count` leaves; the others are left as they are."""
    return lambda i, g: finish(i, g) if i < count else g
