"""Several processes on one run, as `torchrun` starts them: each takes its slice of every batch.

World size does not change the mathematics: `engine/autodiff/collectives.py` has the means over ranks. Reductions are
explicit. torch's DistributedDataParallel skips a parameter that the score does not see, in silence, and sharded
parameters (FSDP) have no second derivative: see `refuse_wrapped`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eblvm.engine.autodiff.collectives import rank, size
from eblvm.engine.device import own_device
from eblvm.engine.errors import UserError

T = TypeVar("T")


def is_first() -> bool:
    """Is this the process that writes, and speaks? Also before and after the group exists."""
    return rank() == 0 if size() > 1 else int(os.environ.get("RANK", 0)) == 0


@contextmanager
def joined(device: str, timeout_minutes: float = 30.0) -> Iterator[None]:
    """The process group that torchrun describes, NCCL for CUDA tensors and gloo for those of the host.

    Without torchrun, or in a group that is there already, nothing happens."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        yield
        return
    on_cuda = torch.device(device).type == "cuda"
    own = torch.device(own_device(device)) if on_cuda else None
    store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps one store for all its restarts: without a name of its own, a restarted worker may find the
        # address of a dead one there. Nodes count restarts each for itself; docs/scale.md says what to do with several.
        store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)  # type: ignore[attr-defined]
    backend = "cpu:gloo,cuda:nccl" if on_cuda else "gloo"
    timeout = timedelta(minutes=timeout_minutes)
    # NCCL is told its GPU: else it guesses one by the rank, and a first barrier on the wrong one hangs.
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout, device_id=own)
    try:
        yield
    finally:
        dist.destroy_process_group()


def local_slice(count: int) -> slice:
    """This rank's slice of `count` things in a row: as even as can be, all of them with one process."""
    return slice(count * rank() // size(), count * (rank() + 1) // size())


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


def gather_to_rank0(x: Tensor) -> Tensor:
    """All ranks' tensors one after the other, on the first rank; on the others x."""
    if size() == 1:
        return x
    parts: list[Any] | None = [None] * size() if is_first() else None
    dist.gather_object(x.cpu(), parts)
    return x if parts is None else torch.cat(parts).to(x.device)


def broadcast_from_rank0(action: Callable[[], T]) -> T:
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
