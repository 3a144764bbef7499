"""Batch norm over processes: one process's value and derivatives, by one collective each way."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.func import functional_call

from eblvm.engine.autodiff import collectives
from eblvm.engine.nets.batch_norm import BatchNorm
from tests.distributed.ranks import on_ranks


def image(rows: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, t, u = (torch.randn(rows, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    return {"x": 100 + x * torch.arange(1, 4).view(3, 1, 1), "t": t, "u": u}


PARAMETERS = {"weight": torch.tensor([0.5, 1.0, 2.0]).double(), "bias": torch.tensor([0.1, 0.2, 0.3]).double()}


def derivatives(rows: int) -> dict[str, Any]:
    """Return the value, the cotangent for x, and the gradient of a loss of both, of this rank's rows; and collectives.

    Losses are means over ranks of own sums: everything sent to other ranks' rows comes back by collectives."""
    x, t, u = (value[collectives.local_slice(rows)] for value in image(rows).values())
    x.requires_grad_()
    parameters = {k: p.clone().requires_grad_() for k, p in PARAMETERS.items()}
    counts, calls = [], []
    plain = dist.all_reduce, dist.all_gather
    with (
        patch.object(dist, "all_reduce", lambda *a, **k: (calls.append(0), plain[0](*a, **k))[1]),
        patch.object(dist, "all_gather", lambda *a, **k: (calls.append(0), plain[1](*a, **k))[1]),
    ):
        seen: list[Tensor] = []
        y = functional_call(BatchNorm(3), parameters, (x, seen))
        counts.append(len(calls))
        (first,) = torch.autograd.grad(y.sin(), x, t, create_graph=True)
        counts.append(len(calls) - sum(counts))
        second = torch.autograd.grad((first * u).sum() + y.square().sum(), [x, *parameters.values()])
    return {"counts": counts, "y": y.detach(), "first": first.detach(), "x": second[0], "own": second[1:], "seen": seen}


@pytest.mark.parametrize("rows", [6, 7])
def test_equal_to_one_process(rows: int) -> None:
    one, several = derivatives(rows), on_ranks(2, derivatives, rows)
    for name in ("y", "first", "x"):
        found = torch.cat([rank[name] for rank in several])
        torch.testing.assert_close(found, one[name], rtol=1e-9, atol=1e-9)
    for i, expected in enumerate(one["own"]):
        torch.testing.assert_close(sum(rank["own"][i] for rank in several), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(several[0]["seen"], several[1]["seen"], rtol=0, atol=0)
    torch.testing.assert_close(several[0]["seen"], one["seen"], rtol=1e-9, atol=1e-9)


def test_one_collective_each_way() -> None:
    for rank in on_ranks(2, derivatives, 6):
        assert rank["counts"] == [1, 1]
