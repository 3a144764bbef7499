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
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from eblvm.engine.autodiff.derivatives import detached, inside_torch_func

BUCKET_BYTES = 25 * 2**20  # large enough for the network's full speed, small enough to pack one while another is sent
ALIGNED = 128  # bytes: each tensor of a bucket begins at a cache line of the GPU, so that reads of it are whole lines
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

    A call with a tensor and its index in `like` returns the tensor's view of a bucket, which has the memory order of
    its tensor in `like`: that of the parameter, which optimisers read in step with its gradient. As the `finish` of
    backward it reduces theta's gradient while backward still runs. The contents of a bucket do not depend on the order
    in which tensors arrive. That order must be the same on all ranks: autograd's is, as it runs its nodes by their
    numbers.
    """

    def __init__(self, like: Sequence[Tensor]):
        self._buckets = _buckets(like)
        self._bucket_of = {i: number for number, bucket in enumerate(self._buckets) for i in bucket}
        self._layouts = [torch.empty_like(x, device="meta") for x in like]  # shapes and dense strides, without memory
        self._flat: dict[int, Tensor] = {}  # buckets by number, allocated when the first of their tensors arrives
        self._views: dict[int, Tensor] = {}  # of buckets, by tensor
        self._arrived: set[int] = set()
        self._in_flight: list[tuple[Tensor, Any]] = []

    def __call__(self, i: int, x: Tensor) -> Tensor:
        number = self._bucket_of[i]
        if number not in self._flat:
            self._allocate(number, x)
        self._arrived.add(i)
        view = self._views[i]
        view.copy_(x.detach())
        if self._arrived.issuperset(self._buckets[number]):
            flat = self._flat[number]
            self._in_flight.append((flat, dist.all_reduce(flat, _reduction(flat), async_op=True)))
        return view

    def _allocate(self, number: int, x: Tensor) -> None:
        """Make a bucket of zeros, which remain between the tensors, and each tensor's view of it."""
        layouts = {i: self._layouts[i] for i in self._buckets[number]}
        begins = list(accumulate(map(_padded, layouts.values()), initial=0))
        flat = self._flat[number] = torch.zeros(begins[-1], dtype=x.dtype, device=x.device)
        for (i, layout), begin in zip(layouts.items(), begins, strict=False):
            self._views[i] = flat.as_strided(layout.shape, layout.stride(), begin)

    def wait(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of all tensors; those of `leaves` that have not arrived before are sent now."""
        for i, x in enumerate(leaves):
            if i not in self._arrived:
                self(i, x)
        for flat, work in self._in_flight:
            work.wait()
            if not _averages(flat):
                flat /= size()
        return [self._views[i] for i in range(len(leaves))]


def differentiable_mean(tree: Any) -> Any:
    """Return every tensor's mean over ranks, differentiable to any order: its cotangents are averaged in backward. All
    are sent in one bucket, so that a chain of such means is the same sequence of collectives on every rank."""
    if size() == 1:
        return tree
    leaves, spec = tree_flatten(tree)
    # Each in its order in memory: ranks compute the same gradient of equally large parts, so their orders are the same.
    orders = [sorted(range(x.dim()), key=x.stride, reverse=True) for x in leaves]
    ordered = [x.permute(order) for x, order in zip(leaves, orders, strict=True)]
    zeros = leaves[0].new_zeros(ALIGNED // leaves[0].itemsize) if len(leaves) > 1 else leaves[0].new_empty(0)
    pieces = [piece for x in ordered for piece in (x.reshape(-1), zeros[: _padded(x) - x.numel()])][:-1]
    parts = _Mean.apply(torch.cat(pieces)).split([piece.numel() for piece in pieces])[::2]
    means = [part.view(x.shape) for part, x in zip(parts, ordered, strict=True)]
    return tree_unflatten([mean.permute(_inverse(order)) for mean, order in zip(means, orders, strict=True)], spec)


def _inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


class _Mean(torch.autograd.Function):
    """x_r -> (1/R) sum_r x_r on every rank; the same for cotangents, up to the mean over ranks that ends a step. For
    torch.func's transforms too: replicas are one tensor, and its mean is that of each."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, _reduction(total))
        return total if _averages(total) else total / size()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return _Mean.apply(cotangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None], x: Tensor) -> tuple[Tensor, int | None]:
        return _Mean.apply(x), in_dims[0]


def _averages(x: Tensor) -> bool:
    """Does the backend of x's device compute means itself? NCCL does, which saves a pass over x; gloo does not."""
    return f"{x.device.type}:nccl" in dist.get_backend_config()


def _reduction(x: Tensor) -> Any:
    return dist.ReduceOp.AVG if _averages(x) else dist.ReduceOp.SUM


def _padded(x: Tensor) -> int:
    """Return the elements of x and of the space up to the next place for a tensor."""
    step = ALIGNED // x.itemsize
    return -(-x.numel() // step) * step


def gathered(x: Tensor) -> Tensor:
    """Return all ranks' x, stacked in front; differentiable to any order: one collective forward, one per backward."""
    return _Gathered.apply(x)


class _Gathered(torch.autograd.Function):
    """x_r -> (x_1, ..., x_R) on every rank; its cotangents' sum over ranks, of this rank's part."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return _OwnSum.apply(cotangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        return _Gathered.apply(x.movedim(in_dims[0], 0)), 1


class _OwnSum(torch.autograd.Function):
    """The transpose of `_Gathered`."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total[rank()].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None: ...

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return _Gathered.apply(cotangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        return _OwnSum.apply(x.movedim(in_dims[0], 1)), 0


def _buckets(leaves: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of tensors that are sent together: of one dtype and device, in order, up to BUCKET_BYTES."""
    buckets: list[list[int]] = []
    filling: dict[tuple[torch.dtype, torch.device], int] = {}  # a kind's bucket that still has room
    room: dict[int, int] = {}
    for i, x in enumerate(leaves):
        kind = (x.dtype, x.device)
        if kind not in filling or room[filling[kind]] < _padded(x) * x.itemsize:
            filling[kind] = len(buckets)
            room[len(buckets)] = BUCKET_BYTES
            buckets.append([])
        buckets[filling[kind]].append(i)
        room[filling[kind]] -= _padded(x) * x.itemsize
    return buckets
