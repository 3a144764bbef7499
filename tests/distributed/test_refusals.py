"""Refusals of runs on several processes, and a job of 64 ranks that starts and steps without a network."""

from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import UserError
from eblvm.engine.nets.base import Separable
from eblvm.engine.recipes import recipe
from eblvm.engine.training import distributed
from eblvm.engine.training.loop import train

DEEP = recipe("digits", "deep").replaced(
    width=2, latent=3, head_width=5, posterior_width=2, batch=128, N=1, K=1, steps=2, validations=1
)


@pytest.fixture
def job_of_64():
    dist.init_process_group("fake", rank=5, world_size=64, store=FakeStore())
    yield
    dist.destroy_process_group()


def test_64_ranks_start_and_step(job_of_64: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Train as rank 5 of 64: its part of the batch, every collective of two steps and a validation, nothing written."""
    monkeypatch.setattr(dist, "broadcast_object_list", lambda objects, **_: None)
    monkeypatch.setattr(distributed, "broadcast_from_rank0", lambda action: action())
    monkeypatch.setattr(distributed, "on_rank0", lambda action: None)
    assert collectives.local_slice(128) == slice(10, 12)
    assert train(DEEP, tmp_path)
    assert not list((tmp_path / "checkpoints").glob("step-*"))
    assert not (tmp_path / "stats.jsonl").exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 100}, "got batch=100 for 64 processes, expected a multiple of 64"),
        (
            {"compile": True},
            "got --compile for 64 processes: .* gets second derivatives of a mean over processes wrong",
        ),
    ],
)
def test_what_several_processes_cannot_do(job_of_64: None, changes: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        distributed.check_world(DEEP.replaced(**changes))


def test_sharded_and_wrapped_models_are_refused_with_the_reason(job_of_64: None) -> None:
    sharded = Separable(nn.Linear(64, 64), nn.Linear(64, 64))
    fully_shard(sharded, mesh=dist.device_mesh.init_device_mesh("cpu", (64,)))
    with pytest.raises(UserError, match="FSDP, whose hooks free the gathered parameters before the second derivative"):
        distributed.refuse_wrapped(sharded)
    wrapped = Separable(nn.parallel.DistributedDataParallel(nn.Linear(3, 3)), nn.Linear(3, 3))
    with pytest.raises(UserError, match="leaves out parameters that the score does not see"):
        distributed.refuse_wrapped(wrapped)
    distributed.refuse_wrapped(Separable(nn.Linear(3, 3), nn.Linear(3, 3)))
