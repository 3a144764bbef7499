"""What the means over ranks send: every tensor at a cache line, in its own memory order, copied once."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eblvm.engine.autodiff import collectives
from tests.distributed.ranks import on_ranks

LINE = 128  # bytes of a GPU's cache line
LAST = torch.channels_last


class Operators(TorchDispatchMode):
    """Counts of the operators inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func._schema.name.split("::")[1]] += 1
        return func(*args, **(kwargs or {}))


def tensors(rank: int) -> dict[str, Tensor]:
    """Return tensors of many sizes, orders and types, which differ between ranks."""
    generator = torch.Generator().manual_seed(rank)
    normal = torch.randn
    return {
        "matrix": normal(3, 5, generator=generator),
        "double": normal(7, generator=generator, dtype=torch.float64),
        "channels last": normal(2, 3, 4, 4, generator=generator).contiguous(memory_format=LAST),
        "number": normal((), generator=generator),
        "transposed": normal(5, 4, generator=generator).t(),
        "one of a kind": normal(3, 1, 5, 5, generator=generator).contiguous(memory_format=LAST),
        "nothing": normal(0, 3, generator=generator),
        "with gaps": normal(6, 8, generator=generator)[:, ::2],
        "last": normal(1, generator=generator),
    }


def order(x: Tensor) -> tuple[int, ...]:
    """Return the strides of the axes with more than one element."""
    return tuple(step for step, count in zip(x.stride(), x.shape, strict=True) if count > 1)


def begin_in_bucket(x: Tensor) -> int:
    return x.data_ptr() - x.untyped_storage().data_ptr()


def faults(means: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    found = []
    for name, x in means.items():
        kept = torch.empty_like(tensors(0)[name])  # which keeps the order, that of a dense tensor to the number
        if not torch.equal(x, expected[name]):
            found.append(f"{name}: another value")
        if order(x) != order(kept):
            found.append(f"{name}: strides {x.stride()}, expected {kept.stride()}")
        if x.numel() and begin_in_bucket(x) % LINE:
            found.append(f"{name} begins at byte {begin_in_bucket(x)} of its bucket")
    return found


def averaged_by_hand() -> dict[str, Tensor]:
    trees = [tensors(rank) for rank in range(dist.get_world_size())]
    return {k: sum(tree[k] for tree in trees) / len(trees) for k in trees[0]}  # type: ignore[misc]


def bucket_faults() -> list[str]:
    """Return the faults of the overlapped mean of a tree, with its memory, and of what is between the tensors."""
    own = tensors(collectives.rank())
    under_way = collectives.MeanUnderWay(list(own.values()))
    with Operators() as operators:
        means = under_way.wait(list(own.values()))
    found = faults(dict(zip(own, means, strict=True)), averaged_by_hand())
    if operators.counts["copy_"] != len(own) or operators.counts["clone"]:
        found.append(f"copies: {operators.counts}")
    for flat in under_way._flat.values():
        between = torch.ones_like(flat, dtype=torch.bool)
        for x in (x for x in means if x.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()):
            begin = begin_in_bucket(x) // x.element_size()
            between[begin : begin + x.numel()] = False
        if not between.any() or flat[between].count_nonzero():
            found.append(f"between tensors: {flat[between]}")
    return found


def test_buckets() -> None:
    """Alignment, order and values, one copy of each tensor, and zeros between them."""
    assert on_ranks(2, bucket_faults) == [[], []]


def different_orders() -> list[bool]:
    """Return whether the mean is right where ranks hold their gradients in other orders than the parameter."""
    parameter, rank = torch.zeros(2, 3, 4, 4).contiguous(memory_format=LAST), collectives.rank()
    whole = [torch.arange(96.0).view(2, 3, 4, 4) * (r + 1) for r in range(2)]
    own = whole[rank] if rank else whole[rank].contiguous(memory_format=LAST)
    (mean,) = collectives.MeanUnderWay([parameter]).wait([own])
    return [torch.equal(mean, (whole[0] + whole[1]) / 2), mean.stride() == parameter.stride()]


def test_the_order_is_the_parameters() -> None:
    """The order in the bucket is that of the parameter, which all ranks share and optimisers read in step with it."""
    assert on_ranks(2, different_orders) == [[True, True]] * 2


def differentiable_faults() -> list[str]:
    """Return the faults of the differentiable mean, of its derivative and of the second one."""
    trees = [{k: x for k, x in tensors(r).items() if x.dtype == torch.float32} for r in range(2)]
    own = {k: x.requires_grad_() for k, x in trees[collectives.rank()].items()}
    means = collectives.differentiable_mean(own)
    hand = {k: x for k, x in averaged_by_hand().items() if k in own}
    found = faults({k: x.detach() for k, x in means.items()}, hand)
    value = sum((x**3).sum() for x in means.values())
    first = torch.autograd.grad(value, list(own.values()), create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), list(own.values()))
    for (name, m), g, h in zip(hand.items(), first, second, strict=True):
        if not torch.allclose(g, 3 * m**2) or not torch.allclose(h, 36 * m**3):
            found.append(f"{name}: a derivative")
    return found


def test_differentiable_mean() -> None:
    assert on_ranks(2, differentiable_faults) == [[], []]
