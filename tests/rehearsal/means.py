"""The means over processes on a fake GPU: what is sent, and the launches next to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from eblvm.engine.autodiff import collectives
from tests.rehearsal.watch import Watch

LAST = {"memory_format": torch.channels_last}
BACKENDS = "cpu:gloo,cuda:nccl"  # as engine/training/distributed.py asks for them


@contextmanager
def two_processes(sent: list[tuple[Tensor, Any]]) -> Iterator[Watch]:
    """The first of two processes; what it sends, and how it is reduced, goes to `sent`."""
    all_reduce = dist.all_reduce

    def noted(x: Tensor, op: Any = dist.ReduceOp.SUM, **how: Any) -> Any:
        sent.append((x, op))
        return all_reduce(x, op, **how)

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with (
            patch.object(dist, "get_backend_config", lambda: BACKENDS),
            patch.object(dist, "all_reduce", noted),
            FakeTensorMode(allow_non_fake_inputs=True),
            Watch() as watch,
        ):
            yield watch
    finally:
        dist.destroy_process_group()


def faults(watch: Watch, sent: list[tuple[Tensor, Any]], expected: dict[str, int]) -> list[str]:
    found = [*watch.problems, *watch.waits, *watch.copies]
    found += [f"reduced by {op} on {x.device}" for x, op in sent if x.device.type != "cuda" or op != dist.ReduceOp.AVG]
    launches = {name: number for name, number in watch.launches.items() if "reduce" not in name}
    return found if launches == expected else [*found, f"launches {launches}, expected {expected}"]


def gradients() -> list[Tensor]:
    """A convolution's gradient, its bias, and a matrix."""
    return [torch.empty(8, 3, 3, 3, device="cuda").to(**LAST), *(torch.empty(n, device="cuda") for n in (8, 63))]


def buckets() -> list[str]:
    """The mean of gradients takes a fill for each bucket and a copy for each tensor; NCCL divides."""
    sent: list[tuple[Tensor, Any]] = []
    with two_processes(sent) as watch:
        given = gradients()
        watch.launches.clear()
        means = collectives.mean(given)
    found = faults(watch, sent, {"zeros": 1, "copy_": len(given)})
    begins = [x.storage_offset() * x.itemsize for x in means]
    if any(begin % 128 for begin in begins) or not means[0].is_contiguous(**LAST):
        found.append(f"means begin at {begins}, strides {means[0].stride()}")
    return found


def differentiable() -> list[str]:
    """The differentiable mean takes one fill, one concatenation and one copy, whatever the orders in memory."""
    sent: list[tuple[Tensor, Any]] = []
    with two_processes(sent) as watch:
        given = gradients()
        watch.launches.clear()
        collectives.differentiable_mean(given)
    return faults(watch, sent, {"new_zeros": 1, "cat": 1, "clone": 1})


MEANS: dict[str, Callable[[], list[str]]] = {f"mean: {mean.__name__}": mean for mean in (buckets, differentiable)}
