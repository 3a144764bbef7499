"""Several processes on one run, as `torchrun` starts them: each takes its slice of every batch.

World size does not change the mathematics: `engine/autodiff/collectives.py` has the means over ranks. Reductions are
explicit. torch's DistributedDataParallel skips a parameter that the score does not see, in silence, and FSDP's hooks
free gathered parameters before their second derivative: see `refuse_wrapped`.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from eblvm.engine.autodiff.collectives import gather_rows, local_slice, rank, size
from eblvm.engine.config import Config
from eblvm.engine.errors import LostPeerError, UserError, WithoutGraphsError
from eblvm.engine.machine import own_device
from eblvm.engine.methods.base import State
from eblvm.engine.training.peers import Peers, patience_s

T = TypeVar("T")
ASK_S = 0.2
AGAIN = "EBLVM_STARTED_AGAIN"  # set for processes that replaced themselves, which torchrun's store knows already


def is_first() -> bool:
    """Is this the process that writes, and speaks? Also before and after the group exists."""
    return dist.get_rank() == 0 if dist.is_initialized() else int(os.environ.get("RANK", 0)) == 0


@contextmanager
def joined(device: str, timeout_minutes: float = 30.0) -> Iterator[None]:
    """The process group that torchrun describes, NCCL for CUDA tensors and gloo for those of the host.

    Without torchrun, or in a group that is there already, nothing happens."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        yield
        return
    on_cuda = torch.device(device).type == "cuda"
    own, patience = torch.device(own_device(device)) if on_cuda else None, patience_s()
    try:
        store, rank, world = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    except dist.DistError as error:
        raise _unreachable(error) from None
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        # torchrun keeps one store for all its restarts: without a name of its own, a restarted worker may find the
        # address of a dead one there. Nodes count restarts each for itself; docs/scale.md says what to do with several.
        store = dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)  # type: ignore[attr-defined]
    if AGAIN in os.environ:
        store = dist.PrefixStore("again", store)  # type: ignore[attr-defined]
    backend, timeout = "cpu:gloo,cuda:nccl" if on_cuda else "gloo", timedelta(minutes=timeout_minutes)
    try:
        # NCCL is told its GPU: else it guesses one by the rank, and a first barrier on the wrong one hangs.
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout, device_id=own)
    except RuntimeError as error:
        raise _unreachable(error) from None
    peers, waits = Peers(store.clone(), rank, world, patience), True
    try:
        yield
    except WithoutGraphsError:
        waits = False  # for a collective that another process has left
        raise
    except RuntimeError as error:
        # Did a collective fail, or a computation? gloo says so in words only.
        if not (isinstance(error, dist.DistError) or any(w in str(error) for w in ("gloo", "NCCL", "Connection"))):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun sends it to all that are left: say why first
        raise peers.lost(error) from None
    finally:
        peers.stop()
        if waits:
            with suppress(RuntimeError):  # of a connection that is gone
                dist.destroy_process_group()


def _unreachable(error: Exception) -> LostPeerError:
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    first = str(error).strip().partition("\n")[0][:120]
    return LostPeerError(
        f"rank {os.environ.get('RANK')}: the other processes cannot be met at {where} ({first}); see that the first "
        "node runs and that its address and port can be reached, then give the same command again"
    )


def check_world(config: Config) -> None:
    batch = config.optimisation.batch
    if size() == 1:
        return
    if batch % size():
        raise UserError(f"got batch={batch} for {size()} processes, expected a multiple of {size()}")
    if config.step.compile:
        raise UserError(
            f"got --compile for {size()} processes: torch's compiler gets second derivatives of a mean over processes "
            "wrong, without a word; remove --compile"
        )


def whole_chains(state: State) -> State:
    """`state` with the chains of all ranks, each of which has moved its own rows only; all must ask together."""
    if size() == 1 or not state.chain:
        return state
    axis = state.theta.moments.step_count.dim()  # that of rows, after those of replicas
    rows = {k: x.movedim(axis, 0) for k, x in state.chain.items()}
    whole = {k: gather_rows(x[local_slice(len(x))]) for k, x in rows.items()}
    return state._replace(chain={k: x.movedim(0, axis).contiguous() for k, x in whole.items()})


def total(values: list[float]) -> list[float]:
    if size() == 1:
        return values
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


class Flags:
    """Flags that are up on all ranks once one of them has raised them.

    Ranks ask together, about every ASK_S seconds: with each answer rank 0 says in how many steps the next one is."""

    def __init__(self) -> None:
        self.next = 0
        self.last: tuple[int, float] | None = None  # the step after which they asked, and when

    def agreed(self, done: int, *flags: bool) -> list[bool]:
        if done < self.next:
            return [False] * len(flags)
        now = time.monotonic()
        before, then = self.last or (done, now)
        self.last = (done, now)
        ahead = int(ASK_S * (done - before) / max(now - then, 1e-9)) if rank() == 0 else 0
        *sums, ahead_of_all = total([*map(float, flags), float(ahead)])
        self.next = done + max(1, int(ahead_of_all))
        return [x > 0 for x in sums]


def gather_to_rank0(x: Tensor) -> Tensor:
    """All ranks' tensors one after the other, on the first rank; on the others x."""
    if size() == 1:
        return x
    parts: list[Any] | None = [None] * size() if is_first() else None
    dist.gather_object(x.cpu(), parts)
    return x if parts is None else torch.cat(parts).to(x.device)


def broadcast_from_rank0(action: Callable[[], T]) -> T:
    """Return on every rank the result of `action` on rank 0. If it fails there, all ranks raise its error."""
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


def on_rank0(action: Callable[[], None]) -> None:
    """`action` on the first rank; its mistakes, a full disk say, end all of them."""
    broadcast_from_rank0(action)


def everyones(x: Any) -> list[Any]:
    """Return every rank's `x`, on every rank; all must ask together."""
    if size() == 1:
        return [x]
    answers: list[Any] = [None] * size()
    dist.all_gather_object(answers, x)
    return answers


@contextmanager
def shared_mistakes() -> Iterator[None]:
    """Around what each rank does for itself. A mistake on any of them is everyone's, and says where it was made."""
    mistake = None
    try:
        yield
    except UserError as error:
        if size() == 1:
            raise
        mistake = str(error)
    if size() == 1:
        return
    for where, sentence in enumerate(everyones(mistake)):
        if sentence is not None:
            raise UserError(sentence if where == 0 else f"rank {where}: {sentence}")


def refuse_wrapped(model: nn.Module | None) -> None:
    """Models of the user's own come plain: neither sharded nor wrapped."""
    if model is None:
        return
    from torch.distributed.tensor import DTensor  # slow to import

    if any(isinstance(p, DTensor) for p in model.parameters()):
        raise UserError(
            "got a model sharded by FSDP, whose hooks free the gathered parameters before the second derivative of "
            "score matching needs them; give the plain module: every rank holds all parameters, and --checkpoint and "
            "--micro-batch save the activations, which are most of the memory"
        )
    if any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules()):
        raise UserError(
            "got a model wrapped in DistributedDataParallel, which leaves out parameters that the score does not see; "
            "give the plain module: gradients are reduced by the engine"
        )
