"""The gradient of score matching from chunks of a batch, equal to that of the whole: the network's memory is a chunk's.

Every sample's term reads q's response, which depends on all samples, but only through the features f, B x dim(f) and
small. So three passes suffice (F: one pass of the features):

    1. f chunk by chunk, without a graph (1 F), and the response to the whole batch;
    2. the loss and its gradient for theta and the response, chunk by chunk (6 F);
    3. where the response is attached to theta, its cotangent back to theta and f, and that of f through the network,
       chunk by chunk (3 F).

Samples keep their global positions: noise and MDSM's levels are slices of the whole batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from eblvm.engine import autodiff
from eblvm.engine.methods.base import Info, Nets, Noise, Rates, State, sliced
from eblvm.engine.optim.base import Weights
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.score_matching import ScoreMatching


def chunked_gradient(
    method: ScoreMatching, nets: Nets, size: int, state: State, v: Tensor, noise: Noise, rates: Rates,
    finish: autodiff.Finish | None = None,
) -> tuple[Params, State, Info]:  # fmt: skip
    """Return what the gradient of `method` returns, with at most `size` samples in the network at once."""
    theta, estimator, (scale, rates) = state.theta.params, method.estimator, method.scales(state, rates)
    batches = method.batches(v, noise)

    def respond(x: tuple[Params, Any]) -> tuple[Any, Weights, Info]:
        return estimator.respond(nets, *x, state.phi, batches, noise, rates)

    f = _features(nets, theta, batches[-1].v, size) if estimator.reads_features else None
    if estimator.attached:
        (response, phi, lower), pull = autodiff.vjp(respond, (theta, f))
    else:
        response, phi, lower = respond((theta, f))

    bars = theta, autodiff.detached(response)
    total: Any = None
    info: Any = None
    for chunk, eps, weight, last in chunks(v, noise, size):
        loss = partial(_loss, method, nets, chunk, eps, rates)
        if estimator.attached:
            total, chunk_info = autodiff.grad(loss, bars, scale, _adding(total, weight, None))
        else:
            of_theta = lambda x, loss=loss: loss((x, bars[1]))  # noqa: E731
            total, chunk_info = autodiff.grad(of_theta, theta, scale, _adding(total, weight, finish if last else None))
        info = _plus(info, chunk_info, weight)
    if not estimator.attached:
        return total, state._replace(phi=phi), lower | info

    gradient, response_bar = total
    upscale = 1.0 if scale is None else scale
    response_bar = autodiff.tree_map(lambda x: x * upscale, response_bar)
    theta_bar, f_bar = pull((response_bar, phi, lower))  # phi and what is logged have no graph
    gradient = _plus(gradient, autodiff.tree_map(lambda x: x / upscale, theta_bar))
    for x, rows, _, last in chunks(batches[-1].v, {"f": f_bar}, size):
        _, pull_features = autodiff.vjp(partial(_features_at, nets, x), theta)
        add = _adding(gradient, 1.0, finish if last else None, upscale)
        gradient = pull_features(rows["f"], finish=add)
    return gradient, state._replace(phi=phi), lower | info


def chunks(v: Tensor, noise: Noise, size: int) -> Iterator[tuple[Tensor, Noise, float, bool]]:
    """Yield (samples, their noise, their fraction of the batch, is it the last) for every chunk."""
    for first in range(0, len(v), size):
        x = v[first : first + size]
        yield x, sliced(noise, first, len(x)), len(x) / len(v), first + len(x) == len(v)


def _loss(
    method: ScoreMatching, nets: Nets, v: Tensor, noise: Noise, rates: Rates, x: tuple[Params, Any]
) -> tuple[Tensor, Info]:
    """Return the mean loss of a chunk as a function of theta and the response, each fixed while the other moves."""
    theta, response = x
    batch = method.batches(v, noise)[-1]
    features = method.features(nets, theta, batch.v, rates)
    return method.value(nets, theta, response, features, batch, noise, rates)


def _features(nets: Nets, theta: Params, v: Tensor, size: int) -> Any:
    """Return f of the whole batch, chunk by chunk and without a graph."""
    with torch.no_grad():
        parts = [_features_at(nets, x, theta) for x in v.split(size)]
    return autodiff.tree_map(lambda *rows: torch.cat(rows), *parts)


def _features_at(nets: Nets, v: Tensor, theta: Params) -> Any:
    return nets.energy.at(theta).features(v)


def _plus(total: Any, tree: Any, weight: float = 1.0) -> Any:
    """Return total + weight * tree, in the place of total; a new tree where there is no total yet."""
    if total is None:
        return autodiff.tree_map(lambda x: x * weight, tree)
    return autodiff.tree_map(lambda t, x: t.add_(x, alpha=weight), total, tree)


def _adding(
    total: Any, weight: float, finish: autodiff.Finish | None, scale: Tensor | float | None = None
) -> Callable[[int, Tensor], Tensor]:
    """Return the `finish` of a chunk: it adds weight * gradient / scale to the total, which it hands on to `finish`."""
    leaves = None if total is None else autodiff.tree_leaves(total)

    def add(i: int, g: Tensor) -> Tensor:
        sum_: Tensor = _plus(None if leaves is None else leaves[i], g if scale is None else g / scale, weight)
        return sum_ if finish is None else finish(i, sum_)

    return add
