"""Means over the processes of a run: of tensors without derivatives, and of tensors that are differentiated through.

Upper and lower losses are means over the global batch, so a gradient is the mean over ranks of their own gradients. An
unrolled step is differentiated: its gradient is averaged in forward and the gradient's cotangent in backward
(`differentiable_mean`), because the map from all ranks' gradients to their mean is symmetric. Each rank keeps its own
cotangents until they reach such a mean, and theta's gradient is averaged at the end. With one process all of this is
the identity. `engine/training/distributed.py` starts and ends the processes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from eblvm.engine.autodiff.derivatives import detached, inside_torch_func

BUCKET_BYTES = 25 * 2**20  # large enough for the network's full speed, small enough to pack one while another is sent
ALONE = ContextVar("ALONE", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """Work without the other processes inside the block: the size is 1, and there is no collective."""
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
    """Return this rank's slice of `count` items: as even as possible, all of them with one process."""
    return slice(count * rank() // size(), count * (rank() + 1) // size())


def gather_rows(x: Tensor) -> Tensor:
    """Return all ranks' rows, equally many; derivatives reach this rank's only, so the whole one is the ranks' sum."""
    if size() == 1:
        return x
    if inside_torch_func():  # zeros in the place of the others' rows: their sum is the whole
        others = [x.new_zeros(rank() * len(x), *x.shape[1:]), x.new_zeros((size() - 1 - rank()) * len(x), *x.shape[1:])]
        whole = size() * differentiable_mean(torch.cat([others[0], x.detach(), others[1]]))
        return torch.cat([whole[: len(others[0])], x, whole[len(whole) - len(others[1]) :]])
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size())]
    dist.all_gather(parts, x.detach().contiguous())
    parts[rank()] = x
    return torch.cat(parts)


def mean(tree: Any) -> Any:
    """Return every tensor's mean over ranks, without a derivative. Buckets are sent while the next ones are packed."""
    if size() == 1:
        return tree
    if inside_torch_func():
        return differentiable_mean(detached(tree))
    leaves, spec = tree_flatten(tree)
    return tree_unflatten(MeanUnderWay(leaves).wait(leaves), spec)


class MeanUnderWay:
    """The mean over ranks of tensors that arrive one by one: a bucket is sent as soon as it is full.

    A call with a tensor and its index in `like` returns the tensor's view of a bucket. As the `finish` of backward it
    reduces theta's gradient while backward still runs. The contents of a bucket do not depend on the order in which
    tensors arrive. That order must be the same on all ranks: autograd's is, as it runs its nodes by their numbers.
    """

    def __init__(self, like: Sequence[Tensor]):
        self._buckets = _buckets(like)
        self._bucket_of = {i: number for number, bucket in enumerate(self._buckets) for i in bucket}
        self._numels = [x.numel() for x in like]
        self._flat: dict[int, Tensor] = {}  # buckets by number, allocated when the first of their tensors arrives
        self._views: dict[int, Tensor] = {}  # of buckets, by tensor
        self._arrived: dict[int, Tensor] = {}  # shapes and strides, without memory, of the tensors that have arrived
        self._in_flight: list[tuple[Tensor, Any]] = []

    def __call__(self, i: int, x: Tensor) -> Tensor:
        number = self._bucket_of[i]
        bucket = self._buckets[number]
        if number not in self._flat:
            numels = [self._numels[j] for j in bucket]
            flat = self._flat[number] = torch.empty(sum(numels), dtype=x.dtype, device=x.device)
            self._views |= zip(bucket, flat.split(numels), strict=True)
        self._arrived[i] = torch.empty_like(x, device="meta")
        view = self._views[i] = self._views[i].view(x.shape)
        view.copy_(x.detach())
        if all(j in self._arrived for j in bucket):
            flat = self._flat[number]
            self._in_flight.append((flat, dist.all_reduce(flat, async_op=True)))
        return view

    def wait(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of all tensors; those of `leaves` that have not arrived before are sent now."""
        for i, x in enumerate(leaves):
            if i not in self._arrived:
                self(i, x)
        for flat, work in self._in_flight:
            work.wait()
            flat /= size()
        return [self._ordered(i) for i in range(len(leaves))]

    def _ordered(self, i: int) -> Tensor:
        """Return a mean in the memory order of its tensor: optimisers read a parameter and its gradient in step."""
        arrived, view = self._arrived[i], self._views[i]
        if arrived.is_contiguous():
            return view
        return torch.empty_strided(arrived.shape, arrived.stride(), dtype=view.dtype, device=view.device).copy_(view)


def differentiable_mean(tree: Any) -> Any:
    """Return every tensor's mean over ranks, differentiable to any order: its cotangents are averaged in backward. All
    are sent in one bucket, so that a chain of such means is the same sequence of collectives on every rank."""
    if size() == 1:
        return tree
    leaves, spec = tree_flatten(tree)
    flat = _Mean.apply(torch.cat([x.reshape(-1) for x in leaves]))
    parts = flat.split([x.numel() for x in leaves])
    return tree_unflatten([part.view(x.shape) for part, x in zip(parts, leaves, strict=True)], spec)


class _Mean(torch.autograd.Function):
    """x_r -> (1/R) sum_r x_r on every rank; the same for cotangents, up to the mean over ranks that ends a step. For
    torch.func's transforms too: replicas are one tensor, and its mean is that of each."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total / size()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return _Mean.apply(cotangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return _Mean.apply(x), in_dims[0]


def _buckets(leaves: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of tensors that are sent together: of one dtype and device, in order, up to BUCKET_BYTES."""
    buckets: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], int] = {}  # a kind's bucket that still has room
    room: dict[int, int] = {}
    for i, x in enumerate(leaves):
        kind = (x.dtype, x.device)
        if kind not in filling or room[filling[kind]] < x.nbytes:
            filling[kind] = len(buckets)
            room[len(buckets)] = BUCKET_BYTES
            buckets.append([])
        buckets[filling[kind]].append(i)
        room[filling[kind]] -= x.nbytes
    return buckets
