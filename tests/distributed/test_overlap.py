"""theta's gradient is reduced while backward still runs: the same bits as after it, and a timeline that shows it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.methods.base import Gradient, Rows
from eblvm.engine.recipes import recipe
from eblvm.engine.training.start import initial_state
from eblvm.engine.training.step import moved, reduced
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.distributed.ranks import on_ranks

B, SMALL_BUCKET = 8, 1500  # bytes: smaller than some parameters, larger than most
WIDE_BUCKET = 2**18  # of the network whose timeline is recorded
DEEP = recipe("digits", "deep").replaced(width=4, latent=3, head_width=5, posterior_width=2, batch=B, K=2)
VAGES = DEEP.replaced(method="vages-mdsm", L=3, C=1)
CASES = {
    "mdsm": DEEP.replaced(method="mdsm"),
    "dsm": DEEP.replaced(method="dsm"),
    "bimdsm N=0": DEEP,
    "bimdsm N=2": DEEP.replaced(N=2),
    "bimdsm N=2 recompute checkpoint": DEEP.replaced(N=2, unroll_memory="recompute", checkpoint="blocks"),
    "bimdsm N=2 kl fresh": DEEP.replaced(N=2, divergence="kl", noise="fresh"),
    "bimdsm newton": DEEP.replaced(best_response="newton"),
    "vages-mdsm": VAGES,
    "vages-ksd": VAGES.replaced(method="vages-ksd", L=3),
    "mdsm fp16": DEEP.replaced(method="mdsm", precision="fp16"),
    "mdsm micro-batch": DEEP.replaced(method="mdsm", micro_batch=1),
    "bimdsm N=0 micro-batch": DEEP.replaced(micro_batch=1),
    "bimdsm N=2 micro-batch": DEEP.replaced(N=2, micro_batch=1),
    "bimdsm N=2 fp16 micro-batch": DEEP.replaced(N=2, micro_batch=1, precision="fp16"),
    "vages-mdsm micro-batch": VAGES.replaced(micro_batch=1),
}
OF_FOUR = ["mdsm", "bimdsm N=2", "vages-mdsm", "bimdsm N=2 micro-batch"]


class Arguments(NamedTuple):
    state: Any
    v: Tensor
    noise: Any
    rates: Any


def step_of(config: Config) -> tuple[Gradient, Arguments]:
    """Return the gradient of this rank's samples and the arguments of its second step: Adam's moments are not zero."""
    data = philox.uniform(Key(7, 0), 0, B, (1, 8, 8))
    method, nets, size = config.method, config.method.nets(config, data), config.step.micro_batch
    assert method.overlaps
    gradient = method.chunked(nets, size) if size else method.gradient(nets)
    update = moved(reduced(gradient, True), nets, config.optimisation.theta_optimizer(), in_place=False)
    state = initial_state(config, nets, torch.tensor(0), data)
    if state.scale:
        state.scale["value"].fill_(16.0)  # small enough to avoid an overflow
    shard = collectives.local_slice(B)
    v = data[shard]
    rates = config.optimisation.rates(0, method.rates(), v)
    keys = [Key(0, step) for step in range(2)]
    noise = [method.draw(nets, key, Rows.of(key, v, shard.start, B)) for key in keys]
    state, _ = update(state, v, noise[0], rates)
    return gradient, Arguments(state, v, noise[1], rates)


class Timeline:
    """Reductions started in the last backward pass of the loss, and how many were complete when it ended."""

    def __init__(self) -> None:
        self.works: list[Any] = []
        self.addresses: list[int] = []
        self.complete = 0


@contextmanager
def traced(parameters: int) -> Iterator[Timeline]:
    """Record the timeline of the block. A backward pass of the loss computes at least `parameters` gradients."""
    timeline, all_reduce, backward = Timeline(), dist.all_reduce, torch.autograd.grad
    running = False

    def traced_all_reduce(x: Tensor, *rest: Any, async_op: bool = False) -> Any:
        work = all_reduce(x, *rest, async_op=async_op)
        if async_op and running:
            timeline.works.append(work)
            timeline.addresses.append(x.data_ptr())
        return work

    def traced_backward(outputs: Any, inputs: Any, *rest: Any, **how: Any) -> Any:
        nonlocal running
        if running or len(inputs) < parameters:  # a lower step that is rebuilt, or another inner derivative
            return backward(outputs, inputs, *rest, **how)
        timeline.__init__()  # type: ignore[misc]
        running = True
        result = backward(outputs, inputs, *rest, **how)
        running = False
        timeline.complete = sum(work.is_completed() for work in timeline.works)
        return result

    dist.all_reduce, torch.autograd.grad = traced_all_reduce, traced_backward
    try:
        yield timeline
    finally:
        dist.all_reduce, torch.autograd.grad = all_reduce, backward


def by_hand(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the mean of a gradient over ranks, computed one tensor after the other."""
    means = {}
    for name, g in gradient.items():
        means[name] = g.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(means[name])
        means[name] /= dist.get_world_size()
    return means


@torch.no_grad()
def compared(name: str) -> tuple[list[str], list[str], int, int]:
    """Return the parameters whose overlapped mean differs in bits from that of one tensor after the other, and from
    that of the same buckets after backward; the number of buckets, and how many started before backward ended."""
    collectives.BUCKET_BYTES = SMALL_BUCKET
    gradient, given = step_of(CASES[name])
    local, state, info = gradient(*given)
    assert all(g.isfinite().all() for g in local.values())
    after = collectives.mean(local)
    alone = by_hand(local)
    with traced(len(local)) as timeline:
        overlapped, overlapped_state, overlapped_info = reduced(gradient, True)(*given)
    for k, x in state.phi.params.items():
        assert torch.equal(overlapped_state.phi.params[k], x), k
    for k, x in info.items():
        assert torch.equal(overlapped_info[k], collectives.mean(x)), k
    differing = [[k for k, g in overlapped.items() if not torch.equal(g, other[k])] for other in (alone, after)]
    buckets = len(collectives._buckets(list(local.values())))
    return *differing, buckets, len(timeline.works)


def all_compared(names: list[str]) -> dict[str, tuple[list[str], list[str], int, int]]:
    return {name: compared(name) for name in names}


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(2, all_compared, list(CASES))


@pytest.fixture(scope="module")
def four() -> list[dict[str, Any]]:
    return on_ranks(4, all_compared, OF_FOUR)


@pytest.mark.parametrize("name", CASES)
def test_overlap_changes_no_bits(name: str, two: list[dict[str, Any]]) -> None:
    for rank in two:
        differing_alone, differing_after, buckets, early = rank[name]
        assert differing_alone == []
        assert differing_after == []
        assert buckets >= 4
        assert early >= buckets - 1  # the last pass of an unroll in micro-batches does not visit the head


@pytest.mark.parametrize("name", OF_FOUR)
def test_overlap_changes_no_bits_of_four_ranks(name: str, four: list[dict[str, Any]]) -> None:
    """Compare with the same buckets: from 3 ranks on gloo's order of summation depends on the place in the bucket."""
    for rank in four:
        assert rank[name][1] == []


@torch.no_grad()
def timeline_of_a_wide_network() -> tuple[int, list[int], int]:
    """Return the number of buckets; the numbers of those that started in backward, in order; and how many of them were
    complete when it ended."""
    collectives.BUCKET_BYTES = WIDE_BUCKET
    gradient, given = step_of(DEEP.replaced(width=32, N=2))
    made: list[collectives.MeanUnderWay] = []

    class Kept(collectives.MeanUnderWay):
        def __init__(self, like: Any):
            super().__init__(like)
            made.append(self)

    plain, collectives.MeanUnderWay = collectives.MeanUnderWay, Kept  # type: ignore[misc]
    with traced(len(given.state.theta.params)) as timeline:
        reduced(gradient, True)(*given)
    collectives.MeanUnderWay = plain  # type: ignore[misc]
    (under_way,) = [x for x in made if len(x._layouts) == len(given.state.theta.params)]
    numbers = {flat.data_ptr(): number for number, flat in under_way._flat.items()}
    return len(numbers), [numbers[address] for address in timeline.addresses], timeline.complete


def test_timeline_shows_reductions_under_backward() -> None:
    (buckets, started, complete), other = on_ranks(2, timeline_of_a_wide_network)
    assert other[:2] == (buckets, started)
    assert buckets >= 10
    assert sorted(started) == list(range(buckets))
    assert started[0] >= buckets - 2  # the last layers first,
    assert started[-1] == 0  # and the first layers last
    assert max(complete, other[2]) >= 1
