"""The Triton Adam step and its reverse against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels import adam_unroll
from eblvm.kernels.adam_unroll import list_plans, reference, triton, triton_lists
from tests.kernels.adam_cases import (
    ORDERS,
    RULE,
    SIZES,
    TOLERANCE,
    check_in_place,
    check_non_contiguous,
    derivatives,
    inputs,
    list_derivatives,
    list_inputs,
    plain,
    plain_lists,
    through,
)
from tests.kernels.comparison import assert_close


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
def test_value_and_derivatives(replicas, size, dtype, nan_filled) -> None:
    tensors = inputs(size, dtype, replicas)
    assert_close(derivatives(through(triton), *tensors), derivatives(plain, *tensors), TOLERANCE[dtype])


def test_non_contiguous_inputs() -> None:
    check_non_contiguous(triton)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_in_place(order, size, replicas, dtype) -> None:
    check_in_place(triton, size, dtype, replicas, ORDERS[order])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("replicas", [(), (2,)], ids=str)
@pytest.mark.parametrize("most", [64, 2], ids=lambda most: f"{most} in a launch")
def test_lists(most, replicas, dtype, nan_filled, monkeypatch) -> None:
    monkeypatch.setattr(list_plans, "MOST", most)
    lists, step_count, lr = list_inputs(dtype, replicas)

    def steps(*arguments):
        return adam_unroll.adam_steps(*arguments, RULE)

    expected = list_derivatives(plain_lists, lists, step_count, lr)
    assert_close(list_derivatives(steps, lists, step_count, lr), expected, TOLERANCE[dtype])
    *_, after = steps(*lists, step_count, lr)
    assert torch.equal(after, step_count + 1)


def test_results_keep_the_order_in_memory() -> None:
    lists, step_count, lr = list_inputs(torch.float32)
    p, m, v, _ = adam_unroll.adam_steps(*lists, step_count, lr, RULE)
    assert all(x[-1].is_contiguous(memory_format=torch.channels_last) for x in (p, m, v))


@pytest.mark.parametrize("b1", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.3, 0.999])
def test_average_and_decay(decay, b1, nan_filled) -> None:
    rule = RULE._replace(b1=b1)
    (p, g, m, v), step_count, lr = list_inputs(torch.float64)
    average = [x.sin() for x in p]
    norm = torch.stack([x.square().sum() for x in g]).sum().sqrt()
    clip_norm = 0.5 * float(norm)
    adjusted = [0.5 * g_i + 0.1 * p_i for g_i, p_i in zip(g, p, strict=True)]
    wanted = [reference.step(*one, step_count + 1, lr, rule)[0] for one in zip(p, adjusted, m, v, strict=True)]
    averaged = [torch.lerp(x, e, decay) for x, e in zip(wanted, average, strict=True)]
    places = [[x.clone(memory_format=torch.preserve_format) for x in xs] for xs in (p, m, v, average)]
    counted = triton_lists.steps_(places[0], g, *places[1:3], step_count, lr, rule, 0.1, clip_norm, places[3], decay)
    assert_close(places[0], wanted, 1e-12)
    assert_close(places[3], averaged, 1e-12)
    assert_close(list(counted), [step_count + 1, norm], 1e-12)


@pytest.mark.parametrize("place", [0, 70 * 60 - 1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_all_finite(bad, place) -> None:
    (p, *_), _, _ = list_inputs(torch.float32)
    assert bool(triton_lists.all_finite(p))
    p[3].view(-1)[place] = bad
    assert bool(triton_lists.all_finite(p)) == (bad == 1e30)


@pytest.mark.parametrize("go", [True, False])
def test_nothing_moves_where_it_must_not(go) -> None:
    lists, step_count, lr = list_inputs(torch.float64)
    p, g, m, v = lists
    places = [[x.clone(memory_format=torch.preserve_format) for x in xs] for xs in (p, m, v)]
    counted = triton_lists.steps_(places[0], g, *places[1:], step_count, lr, RULE, go=torch.tensor(go))
    wanted = [reference.step(*one, step_count + 1, lr, RULE) for one in zip(p, g, m, v, strict=True)]
    expected = [list(part) for part in zip(*wanted, strict=True)] if go else [p, m, v]
    for got, want in zip(places, expected, strict=True):
        assert_close(got, want, 1e-12)
    assert float(counted[0]) == float(step_count) + go
    triton_lists.restore_(places[0], p, torch.tensor(go))
    assert_close(places[0], expected[0] if go else p, 1e-12)
    triton_lists.restore_(places[0], p, torch.tensor(False))
    assert_close(places[0], p, 0.0)
