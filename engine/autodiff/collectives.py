"""Means over the processes of a run: of what has no derivative, and of what is differentiated through.

Upper and lower losses are means over the global batch, so a gradient is the mean over ranks of each rank's own. An
unrolled step is differentiated: its gradient is averaged in forward and the gradient's cotangent in backward
(`differentiable_mean`), because the map from all ranks' gradients to their mean is symmetric. Cotangents stay each
rank's own until they meet such a mean, and theta's gradient is averaged at the end. With one process all of this is
the identity. Starting and ending processes is `engine/training/distributed.py`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from eblvm.engine.autodiff.derivatives import inside_torch_func

BUCKET_BYTES = 25 * 2**20  # large enough for the network's full speed, small enough to pack one while another travels


ALONE = ContextVar("ALONE", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Inside, this process works on something of its own: there is one process, and no collective."""
    token = ALONE.set(True)
    try:
        yield
    finally:
        ALONE.reset(token)


def size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() and not ALONE.get() else 1


def rank() -> int:
    return dist.get_rank() if size() > 1 else 0


def local_slice(count: int) -> slice:
    """This rank's slice of `count` things in a row: as even as can be, all of them with one process."""
    return slice(count * rank() // size(), count * (rank() + 1) // size())


def gather_rows(x: Tensor) -> Tensor:
    """All ranks' rows in order; every rank has as many. Derivatives reach this rank's own rows only, so the sum over
    ranks of what they give is the whole derivative."""
    if size() == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size())]
    dist.all_gather(parts, x.detach().contiguous())
    parts[rank()] = x
    return torch.cat(parts)


def mean(tree: Any) -> Any:
    """Every tensor's mean over ranks, without a derivative. Buckets travel while the next ones are packed."""
    if size() == 1:
        return tree
    leaves, spec = tree_flatten(tree)
    return tree_unflatten(MeanUnderWay(leaves).wait(leaves), spec)


class MeanUnderWay:
    """The mean over ranks of tensors that come one by one: a bucket travels as soon as it is full.

    Called with a tensor and its place among `like`, it gives the tensor's place in a bucket; so theta's gradient is
    reduced while backward still runs, as its `finish`. What a bucket holds does not depend on the order in which
    tensors come. That order must be the same on all ranks: autograd's is, for it takes its nodes by their numbers.
    """

    def __init__(self, like: Sequence[Tensor]):
        self._buckets = _buckets(like)
        self._bucket_of = {i: number for number, bucket in enumerate(self._buckets) for i in bucket}
        self._numels = [x.numel() for x in like]
        self._flat: dict[int, Tensor] = {}  # buckets by number, made when the first of their tensors comes
        self._pieces: dict[int, Tensor] = {}  # of buckets, by tensor
        self._came: dict[int, Tensor] = {}  # shapes and strides, without memory, of the tensors that have come
        self._travelling: list[tuple[Tensor, Any]] = []

    def __call__(self, i: int, x: Tensor) -> Tensor:
        number = self._bucket_of[i]
        bucket = self._buckets[number]
        if number not in self._flat:
            numels = [self._numels[j] for j in bucket]
            flat = self._flat[number] = torch.empty(sum(numels), dtype=x.dtype, device=x.device)
            self._pieces |= zip(bucket, flat.split(numels), strict=True)
        self._came[i] = torch.empty_like(x, device="meta")
        piece = self._pieces[i] = self._pieces[i].view(x.shape)
        piece.copy_(x.detach())
        if all(j in self._came for j in bucket):
            flat = self._flat[number]
            self._travelling.append((flat, dist.all_reduce(flat, async_op=True)))
        return piece

    def wait(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """The means of all. Of `leaves` those are sent now that have not come before."""
        for i, x in enumerate(leaves):
            if i not in self._came:
                self(i, x)
        for flat, work in self._travelling:
            work.wait()
            flat /= size()
        return [self._ordered(i) for i in range(len(leaves))]

    def _ordered(self, i: int) -> Tensor:
        """In the memory order that it came in: optimisers walk through a parameter and its gradient side by side."""
        came, piece = self._came[i], self._pieces[i]
        if came.is_contiguous():
            return piece
        return torch.empty_strided(came.shape, came.stride(), dtype=piece.dtype, device=piece.device).copy_(piece)


def differentiable_mean(tree: Any) -> Any:
    """Every tensor's mean over ranks, differentiable to any order: its cotangents are averaged in backward.

    All travel in one bucket, so that a chain of such means is one collective after the other, on every rank alike."""
    if size() == 1:
        return tree
    if inside_torch_func():
        raise RuntimeError("several processes train in plain autograd; remove --compile and --replicas")
    leaves, spec = tree_flatten(tree)
    flat = _Mean.apply(torch.cat([x.reshape(-1) for x in leaves]))
    pieces = flat.split([x.numel() for x in leaves])
    return tree_unflatten([piece.view(x.shape) for piece, x in zip(pieces, leaves, strict=True)], spec)


class _Mean(torch.autograd.Function):
    """x_r -> (1/R) sum_r x_r on every rank; the same for cotangents, up to the mean over ranks that ends a step."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total / size()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return _Mean.apply(cotangent)


def _buckets(leaves: Sequence[Tensor]) -> list[list[int]]:
    """Places of tensors that travel together: of one dtype and device, in order, up to BUCKET_BYTES."""
    found: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], int] = {}  # a kind's bucket that still has room
    room: dict[int, int] = {}
    for i, x in enumerate(leaves):
        kind = (x.dtype, x.device)
        if kind not in filling or room[filling[kind]] < x.nbytes:
            filling[kind] = len(found)
            room[len(found)] = BUCKET_BYTES
            found.append([])
        found[filling[kind]].append(i)
        room[filling[kind]] -= x.nbytes
    return found
