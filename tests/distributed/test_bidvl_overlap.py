"""BiDVL's three gradients travel while their backward passes run."""

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from eblvm.engine.autodiff import collectives
from tests.distributed.ranks import on_ranks
from tests.distributed.test_exact import CASES, trained


def started(name: str) -> tuple[int, int]:
    """Return how many buckets were sent inside of backward passes, and outside of them."""
    collectives.BUCKET_BYTES = 1500
    all_reduce, backward = dist.all_reduce, torch.autograd.grad
    depth, inside, outside = 0, 0, 0

    def counted(*arguments: Any, async_op: bool = False, **how: Any) -> Any:
        nonlocal inside, outside
        inside += async_op and depth > 0
        outside += async_op and depth == 0
        return all_reduce(*arguments, async_op=async_op, **how)

    def watched(*arguments: Any, **how: Any) -> Any:
        nonlocal depth
        depth += 1
        result = backward(*arguments, **how)
        depth -= 1
        return result

    with patch.object(dist, "all_reduce", counted), patch.object(torch.autograd, "grad", watched):
        trained(CASES[name])
    return inside, outside


def test_most_buckets_are_sent_inside_backward() -> None:
    for rank in on_ranks(2, all_started):
        for inside, outside in rank:
            assert inside > outside


def all_started() -> list[tuple[int, int]]:
    return [started(name) for name in ("bidvl", "bidvl complete hinge sigmoid")]
