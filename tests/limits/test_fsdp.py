"""Second derivatives of sharded parameters: a functional call on DTensors is exact, FSDP2's hooks raise."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from tests.distributed.ranks import on_ranks


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 1)).double()


def score_loss(energy: Any, v: Tensor) -> Tensor:
    """Return |dE/dv|^2, to be differentiated once more."""
    v.requires_grad_()
    (score,) = torch.autograd.grad(energy(v).sum(), v, create_graph=True)
    return score.square().sum()


def sharded() -> tuple[list[float], str]:
    """Return the largest difference of each gradient from the plain module's, and FSDP2's error."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    x, plain = torch.randn(4, 6, dtype=torch.float64), network()
    dist.broadcast(x, 0)
    params = {k: distribute_tensor(p.detach(), mesh, [Shard(0)]).requires_grad_() for k, p in plain.named_parameters()}
    loss = score_loss(lambda v: functional_call(plain, params, (v,)), distribute_tensor(x, mesh, [Replicate()]))
    sharded_gradient = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    expected = torch.autograd.grad(score_loss(plain, x.clone()), list(plain.parameters()), allow_unused=True)
    differences = [
        float((a.full_tensor() - b).abs().max())
        for a, b in zip(sharded_gradient, expected, strict=True)
        if b is not None
    ]
    hooked = network()
    fully_shard(hooked[0], mesh=mesh)  # type: ignore[index]
    fully_shard(hooked, mesh=mesh)
    try:
        score_loss(hooked, x.clone()).backward()
        said = ""
    except RuntimeError as error:
        said = str(error)
    return differences, said


def test_functional_calls_on_dtensors_are_exact_and_hooks_raise() -> None:
    for differences, said in on_ranks(2, sharded):
        assert len(differences) == 3  # the score does not depend on the last bias
        assert max(differences) < 1e-14
        assert "storage of size 0" in said
