"""How lists of tensors are walked: which of them are copied before, and the parts that are launched.

To find that out takes several times as long as to launch it, and a run's lists have the same shapes and strides in
every step. Plans are therefore kept, by these numbers: a plan refers to no tensor, and the same numbers need the same
plan.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

KEPT = 64  # plans; a run needs a few of them
MOST = 64  # tensors of a launch: six pointers each stay below the 4 KiB of arguments that every driver accepts
ALIGNED = 64  # elements: a tensor's results begin at multiples

Numbers = tuple[int, ...]


class Launch(NamedTuple):
    """A part of a list: the numbers of its tensors, and the kernel's constants for them."""

    chosen: list[int]
    grid: tuple[int, int]
    constants: dict[str, Any]

    def of(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple([tensors[i] for i in self.chosen])

    def only(self, *names: str) -> dict[str, Any]:
        return {name: self.constants[name] for name in names}


class Plan(NamedTuple):
    """`gathered` are the tensors of the first lists that are walked in contiguous copies, since they have no dense
    order in memory, or not the same one; `reordered` are those of each other list that are copied into the first's."""

    gathered: list[int]
    reordered: list[list[int]]
    launches: list[Launch]
    begins: list[int]  # of each tensor's results
    room: int  # elements of the results

    def walked(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return a list of the first ones as it is walked."""
        return replaced(tensors, {i: tensors[i].contiguous() for i in self.gathered})

    def laid_out(self, number: int, tensors: Sequence[Tensor], places: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the other list of this number in the order of `places`, the first list as it is walked."""
        return replaced(tensors, {i: torch.empty_like(places[i]).copy_(tensors[i]) for i in self.reordered[number]})


def replaced(tensors: Sequence[Tensor], copies: dict[int, Tensor]) -> Sequence[Tensor]:
    return [copies.get(i, x) for i, x in enumerate(tensors)] if copies else tensors


def plan_of(
    lists: Sequence[Sequence[Tensor]],
    others: Sequence[Sequence[Tensor]] = (),
    lead: torch.Size = torch.Size(),  # noqa: B008  immutable
    fresh: bool = False,
) -> Plan:
    """Return the plan of `lists`, which are walked together in one order, and of others, which follow the first one.

    All have the shapes of the first; `lead` are their leading axes, the replicas. `fresh` results have new memory."""
    x = lists[0][0]
    shapes = tuple([x.shape for x in lists[0]])
    numbers = shapes, strides(lists), strides(others), lead, tile_size(x.dtype), fresh, MOST
    return planned(*numbers) if torch.compiler.is_compiling() else kept(*numbers)  # it traces through no cache


def tile_size(dtype: torch.dtype) -> int:
    """Elements of a program: eight per thread, four of float64, fit into registers."""
    return 1024 if dtype == torch.float64 else 2048


def strides(lists: Sequence[Sequence[Tensor]]) -> tuple[tuple[Numbers, ...], ...]:
    return tuple([tuple([x.stride() for x in tensors]) for tensors in lists])


def planned(
    shapes: Sequence[Numbers],
    lists: Sequence[Sequence[Numbers]],
    others: Sequence[Sequence[Numbers]],
    lead: Numbers,
    block: int,
    fresh: bool,
    most: int,
) -> Plan:
    places, gathered = [], []
    for i, (shape, *every) in enumerate(zip(shapes, *lists, strict=True)):
        orders = [order(shape, steps) for steps in every]
        if (is_dense(shape, every[0]) if not lead else orders[0] == contiguous(shape)) and len(set(orders)) == 1:
            places.append(orders[0])
        else:
            places.append(contiguous(shape))
            gathered.append(i)
    reordered = [
        [i for i, (shape, steps) in enumerate(zip(shapes, every, strict=True)) if order(shape, steps) != places[i]]
        for every in others
    ]
    *begins, room = accumulate((-(-math.prod(shape) // ALIGNED) * ALIGNED for shape in shapes), initial=0)
    return Plan(gathered, reordered, launches(shapes, lead, block, begins if fresh else [], most), begins, room)


kept = lru_cache(KEPT)(planned)


def launches(shapes: Sequence[Numbers], lead: Numbers, block: int, begins: Sequence[int], most: int) -> list[Launch]:
    """Return the parts of a list, of at most `most` tensors each; those without elements are left out."""
    replicas = math.prod(lead)
    full = [i for i, shape in enumerate(shapes) if 0 not in shape] or [0]
    parts = []
    for at in range(0, len(full), most):
        chosen = full[at : at + most]
        sizes = tuple(math.prod(shapes[i]) // max(replicas, 1) for i in chosen)
        *first, tiles = accumulate((-(-size // block) for size in sizes), initial=0)
        starts = tuple(begins[i] for i in chosen) if begins else (0,) * len(chosen)
        constants = {"FIRST": tuple(first), "SIZES": sizes, "STARTS": starts, "COUNT": len(chosen), "BLOCK": block}
        parts.append(Launch(chosen, (max(tiles, 1), replicas), constants))
    return parts


def order(shape: Numbers, steps: Numbers) -> Numbers:
    """Return the strides of the axes that have more than one element."""
    return tuple(step for step, size in zip(steps, shape, strict=True) if size > 1)


def contiguous(shape: Numbers) -> Numbers:
    """Return the `order` of a contiguous tensor."""
    sizes = [size for size in shape if size > 1]
    return tuple(math.prod(sizes[k + 1 :]) for k in range(len(sizes)))


def is_dense(shape: Numbers, steps: Numbers) -> bool:
    """Has the tensor one place in memory for each element, and none between them?"""
    axes = sorted((step, size) for step, size in zip(steps, shape, strict=True) if size > 1)
    before = accumulate((size for _, size in axes), lambda x, y: x * y, initial=1)
    return 0 in shape or all(step == expected for (step, _), expected in zip(axes, before, strict=False))
