"""torch's own means for deep energies: activation checkpointing, DDP, `torch.compile`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._inductor import config as inductor
from torch.func import functional_call, grad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from eblvm.bench.contestants.deep import PlainDeep, can
from eblvm.bench.contestants.roster import contestant
from eblvm.bench.tools.registry import Case


@contestant("naive", "deep")
def naive(case: Case) -> PlainDeep | None:
    return PlainDeep(case) if can(case) and case.config["checkpoint"] == "none" else None


def by_blocks(method: Any) -> None:
    """Every block of the ResNet under `torch.utils.checkpoint`."""
    blocks = method.model.blocks

    def forward(x: Tensor) -> Tensor:
        for one in blocks:
            x = checkpoint(one, x, use_reentrant=False)
        return x

    blocks.forward = forward


@contestant(
    "torch checkpoint",
    "deep",
    note="The score pass recomputes the activations and its graph then keeps them all: checkpointing saves nothing.",
)
def checkpointed(case: Case) -> PlainDeep | None:
    return PlainDeep(case, by_blocks) if can(case) and case.config["checkpoint"] == "blocks" else None


def in_ddp(method: Any) -> None:
    """MDSM with the model in DDP: a group of one process, so that its hooks and buckets are all that it costs."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(method.model)
    parameters = list(method.model.parameters())

    def gradient(v: Tensor, draw: Any) -> list[Tensor]:
        eps, _ = draw()
        x = (v + method.sigma * eps).requires_grad_()
        for p in parameters:
            p.grad = None
        method.residual(-model(x), x, eps).backward(inputs=parameters)
        return [p.grad for p in parameters]  # type: ignore[misc]

    method.gradient = gradient


@contestant("torch DDP", "deep", note="A group of one process.")
def ddp(case: Case) -> PlainDeep | None:
    c = case.config
    return PlainDeep(case, in_ddp) if c["method"] == "mdsm" and c["checkpoint"] == "none" else None


def compiled(method: Any) -> None:
    """MDSM's gradient as one function of `torch.func`, compiled."""
    inductor.compile_threads = 1  # others' threads would not survive the fork of its workers

    def loss(theta: dict[str, Tensor], v: Tensor, eps: Tensor) -> Tensor:
        score = grad(lambda x: -functional_call(method.model, theta, (x,)).sum())(v + method.sigma * eps)
        return 0.5 * (score / method.sigma + eps / method.sigma0**2).square().flatten(1).sum(-1).mean()

    function = torch.compile(grad(loss), dynamic=False)  # else a second size is compiled for all sizes, in minutes

    def gradient(v: Tensor, draw: Any) -> list[Tensor]:
        with torch.no_grad():
            return list(function(dict(method.model.named_parameters()), v, draw()[0]).values())

    method.gradient = gradient


class CompiledDeep(PlainDeep):
    inputs = lambda self: None  # noqa: E731  # compiled code allocates where no dispatch mode sees it


@contestant("torch.compile", "deep")
def torch_compile(case: Case) -> PlainDeep | None:
    c = case.config
    return CompiledDeep(case, compiled) if c["method"] == "mdsm" and c["checkpoint"] == "none" else None
