"""Several processes on one run, as `torchrun` starts them: each takes its part of every batch.

World size does not change the mathematics. Upper and lower losses are means over the global batch, so a gradient is the
mean over ranks of each rank's own. An unrolled step is differentiated: its gradient is averaged in forward and the
gradient's cotangent in backward (`mean_through`), because the map from all ranks' gradients to their mean is symmetric.
Cotangents stay each rank's own until they meet such a mean, and theta's gradient is averaged at the end.

Reductions are explicit. torch's DistributedDataParallel skips a parameter that the score does not see, in silence, and
sharded parameters (FSDP) have no second derivative: see `refuse_wrapped`. With one process all of this is the identity.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from eblvm.engine.bilevel.derivatives import inside_torch_func
from eblvm.engine.errors import UserError

BUCKET_BYTES = 25 * 2**20  # large enough for the network's full speed, small enough to pack one while another travels
T = TypeVar("T")


def size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if size() > 1 else 0


def is_first() -> bool:
    """Is this the process that writes, and speaks? Also before and after the group exists."""
    return rank() == 0 if size() > 1 else int(os.environ.get("RANK", 0)) == 0


@contextmanager
def joined(device: str) -> Iterator[None]:
    """The process group that torchrun describes, NCCL for CUDA tensors and gloo for those of the host.

    Without torchrun, or in a group that is there already, nothing happens."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        yield
        return
    on_cuda = torch.device(device).type == "cuda"
    if on_cuda:
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            raise UserError(
                f"got {os.environ['LOCAL_WORLD_SIZE']} processes on a machine with {torch.cuda.device_count()} GPUs, "
                "expected one a GPU; give torchrun a smaller --nproc-per-node"
            )
        torch.cuda.set_device(local)
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps one store for all its restarts: without a name of its own, a restarted worker may find the
        # address of a dead one there. Nodes count restarts each for itself; docs/scale.md says what to do with several.
        store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if on_cuda else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def part(count: int) -> slice:
    """This rank's share of `count` things in a row: as even as can be, all of them with one process."""
    return slice(count * rank() // size(), count * (rank() + 1) // size())


def mean(tree: Any) -> Any:
    """Every tensor's mean over ranks, without a derivative. Buckets travel while the next ones are packed."""
    if size() == 1:
        return tree
    leaves, spec = tree_flatten(tree)
    under_way = []
    for bucket in _buckets(leaves):
        flat = torch.cat([leaves[i].detach().reshape(-1) for i in bucket])
        under_way.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
    for bucket, flat, work in under_way:
        work.wait()
        flat /= size()
        for i, piece in zip(bucket, flat.split([leaves[i].numel() for i in bucket]), strict=True):
            # Memory order is kept: optimisers walk through a parameter and its gradient side by side.
            x, piece = leaves[i], piece.view(leaves[i].shape)
            leaves[i] = piece if x.is_contiguous() else torch.empty_like(x).copy_(piece)
    return tree_unflatten(leaves, spec)


def mean_through(tree: Any) -> Any:
    """Every tensor's mean over ranks, differentiable to any order: its cotangents are averaged in backward.

    All travel in one bucket, so that a chain of such means is one collective after the other, on every rank alike."""
    if size() == 1:
        return tree
    if inside_torch_func():
        raise RuntimeError("several processes train in plain autograd; leave --compile and --replicas out")
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


def _buckets(leaves: list[Tensor]) -> list[list[int]]:
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


def total(values: list[float]) -> list[float]:
    """Sums over ranks."""
    if size() == 1:
        return values
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def anywhere(flag: bool) -> bool:
    """Is it true on any rank? Asked on the host: no GPU waits for the answer."""
    return total([float(flag)])[0] > 0


def gathered(x: Tensor) -> Tensor:
    """All ranks' tensors one after the other, on the first rank; on the others x."""
    if size() == 1:
        return x
    parts: list[Any] | None = [None] * size() if is_first() else None
    dist.gather_object(x.cpu(), parts)
    return x if parts is None else torch.cat(parts).to(x.device)


def from_first(action: Callable[[], T]) -> T:
    """What `action` gives on the first rank, on all of them. Its mistakes are everyone's: nobody waits for the dead."""
    if size() == 1:
        return action()
    answer: list[Any] = [None, None]
    if is_first():
        try:
            answer[0] = action()
        except UserError as error:
            answer[1] = str(error)
    dist.broadcast_object_list(answer, device=torch.device("cpu"))
    if answer[1] is not None:
        raise UserError(answer[1])
    return answer[0]


def refuse_wrapped(model: nn.Module | None) -> None:
    """Models of the user's own come plain: neither sharded nor wrapped."""
    if model is None:
        return
    from torch.distributed.tensor import DTensor  # slow to import

    if any(isinstance(p, DTensor) for p in model.parameters()):
        raise UserError(
            "got a model sharded by FSDP, whose gathered parameters have no second derivative, which score matching "
            "needs; give the plain module: every rank holds all parameters, and --checkpoint and --micro-batch save "
            "the activations, which are most of the memory"
        )
    if any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules()):
        raise UserError(
            "got a model wrapped in DistributedDataParallel, which leaves out parameters that the score does not see; "
            "give the plain module: gradients are reduced by the engine"
        )
