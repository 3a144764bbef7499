"""Plans of how lists are walked: right for every order in memory, kept by numbers alone, and few."""

import gc
import sys
import warnings
import weakref
from types import FrameType
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import list_plans, triton_lists
from eblvm.kernels.adam_unroll.list_plans import Plan, kept, plan_of
from eblvm.kernels.adam_unroll.reference import Rule

LAST = torch.channels_last
TENSORS = {
    "matrix": lambda: torch.randn(3, 5),
    "number": lambda: torch.randn(()),
    "empty": lambda: torch.randn(0, 3),
    "images": lambda: torch.randn(2, 3, 4, 4),
    "images, channels last": lambda: torch.randn(2, 3, 4, 4).contiguous(memory_format=LAST),
    "one channel": lambda: torch.randn(2, 1, 4, 4).contiguous(memory_format=LAST),
    "transposed": lambda: torch.randn(5, 3).t(),
    "rows apart": lambda: torch.randn(6, 8)[::2],
    "columns apart": lambda: torch.randn(6, 8)[:, ::2],
    "expanded": lambda: torch.randn(4, 1).expand(4, 6),
    "permuted": lambda: torch.randn(4, 5, 6).permute(2, 0, 1),
}


@pytest.fixture(autouse=True)
def no_plans() -> None:
    kept.cache_clear()


def by_torch(place: Tensor, other: Tensor, lead: int) -> tuple[bool, bool]:
    """Return whether a copy of `place` is walked, and of `other`, by torch's own word on memory orders."""
    dense = place.is_contiguous() or (not lead and order(torch.empty_like(place)) == order(place))
    walked = place if dense else place.contiguous()
    return not dense, order(other) != order(walked)


def order(x: Tensor) -> list[int]:
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]


@pytest.mark.parametrize(("name", "lead"), [(n, k) for n in TENSORS for k in (0, 1) if k == 0 or n != "number"])
def test_copies_are_those_that_memory_needs(name: str, lead: int) -> None:
    x = TENSORS[name]()
    contiguous = torch.empty(x.shape)
    for other in (x, contiguous):
        plan = plan_of([[x]], [[other]], x.shape[:lead])
        copied, reordered = by_torch(x, other, lead)
        assert plan.gathered == ([0] if copied else [])
        assert plan.reordered == [[0] if reordered else []] or x.numel() == 0
    (walked,) = plan.walked([x])
    (beside,) = plan.laid_out(0, [contiguous.copy_(x)], [walked])
    for y in (walked, beside):
        assert torch.equal(y, x)
        assert order(y) == order(walked) or x.numel() == 0


def test_lists_that_are_walked_together_have_one_order() -> None:
    images = TENSORS["images, channels last"]()
    assert plan_of([[images], [images.clone()]]).gathered == []
    assert plan_of([[images], [images.contiguous()]]).gathered == [0]


def test_results_do_not_overlap() -> None:
    lists = [TENSORS[name]() for name in TENSORS]
    plan = plan_of([lists], fresh=True)
    ends = [begin + x.numel() for begin, x in zip(plan.begins, lists, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, [*plan.begins[1:], plan.room], strict=True))
    assert all(begin % 64 == 0 for begin in plan.begins)
    (part,) = plan.launches
    assert part.constants["STARTS"] == tuple(b for b, x in zip(plan.begins, lists, strict=True) if x.numel())


def test_a_plan_is_kept_for_its_numbers() -> None:
    def plan(n: int = 3, last: bool = False, **how: Any) -> Plan:
        x = torch.zeros(2, n, 4, 4, dtype=how.pop("dtype", torch.float32))
        return plan_of([[x.contiguous(memory_format=LAST) if last else x]], **how)

    first = plan()
    assert plan() is first
    others = [plan(4), plan(last=True), plan(dtype=torch.float64), plan(lead=torch.Size([2])), plan(fresh=True)]
    assert all(other is not first for other in others)
    with patch.object(list_plans, "MOST", 2):
        assert plan() is not first
    assert plan() is first


def test_plans_are_few_and_keep_no_tensor() -> None:
    x = torch.zeros(5)
    alive = weakref.ref(x)
    plan_of([[x]], [[x]])
    del x
    gc.collect()
    assert alive() is None
    for n in range(2 * list_plans.KEPT):
        plan_of([[torch.zeros(n)]])
    assert kept.cache_info().currsize == list_plans.KEPT


def test_the_compiler_traces_it_without_its_memory() -> None:
    def begin(x: Tensor) -> Tensor:
        return x + plan_of([[x, x]], fresh=True).begins[1]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(torch.compile(begin, backend="eager", fullgraph=True)(torch.zeros(65))[0]) == 128
    assert kept.cache_info().currsize == 0


def calls_of_a_step(count: int) -> int:
    """Return the calls of Python functions that the launcher makes for the second step of `count` tensors."""
    p, g, m, v, average = ([torch.zeros(4, 3) for _ in range(count)] for _ in range(5))
    number, files, calls = torch.zeros(()), (triton_lists.__file__, list_plans.__file__), 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename in files

    class Unlaunched:
        def __getitem__(self, grid: Any) -> Any:
            return lambda *_, **__: None

    names = "steps_kernel", "squares_kernel", "norm_kernel"
    with patch.multiple(triton_lists, **{name: Unlaunched() for name in names}):
        for _ in range(2):
            calls = 0
            sys.setprofile(note)
            triton_lists.steps_(p, g, m, v, number, number, Rule(), 0.0, None, average, 0.9)
            sys.setprofile(None)
    return calls


def test_a_step_of_many_tensors_makes_no_more_calls() -> None:
    """The launcher's time: 64 tensors took 0.7 ms of functions of one tensor before each launch."""
    assert 0 < calls_of_a_step(64) == calls_of_a_step(4)
