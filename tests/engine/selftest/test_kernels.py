"""The self-test finds a wrong value of any kernel op, in each of its orders; the right ones pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm import kernels as every_op
from eblvm.engine.selftest import kernels
from eblvm.engine.selftest.decoder import decoder
from eblvm.engine.selftest.finding import run
from eblvm.kernels.philox import Key

ORDERS = [(name, order) for name, op in kernels.OPS.items() for order in range(op(*kernels.SIZES[0]).orders + 1)]
WRONG = 0.05


def wrong_in(order: int, f: Callable[..., Any]) -> Callable[..., Any]:
    """Return f with an error of 5 % that this order of its derivatives, and no lower one, shows."""

    def faulty(y: Tensor) -> Tensor:
        y = y * 1.0
        apart = y - y.detach()
        return (y + WRONG * y.detach(), y + WRONG * apart, y + WRONG * y.detach().abs().max() * apart.square())[order]

    return lambda *tensors: tree_map(faulty, f(*tensors))


def test_the_right_kernels_pass_and_every_op_has_a_check() -> None:
    found = list(run(kernels.kernels("cpu")))
    assert [f for f in found if not f.passed] == []
    names = {name for f in found for name in f.check.replace(",", " ").split()}
    assert {op.__name__.split(".")[-1] for op in every_op.OPS} <= names


def test_the_decoder_passes() -> None:
    pytest.importorskip("nvidia.dali")
    (found,) = run(decoder("cpu"))
    assert found.passed, found


@pytest.mark.parametrize("size", kernels.SIZES)
@pytest.mark.parametrize(("name", "order"), ORDERS)
def test_a_wrong_value_is_found(
    name: str, order: int, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = kernels.OPS[name]

    def faulty(*size: int) -> kernels.Op:
        op = right(*size)
        return op._replace(op=wrong_in(order, op.op))

    monkeypatch.setitem(kernels.OPS, name, faulty)
    found = kernels.deviation(name, size, "cpu")
    assert found.bound is not None
    assert not found.figure <= found.bound


@pytest.mark.parametrize("draw", kernels.DRAWS)
def test_one_other_number_is_found(draw: Callable[..., Tensor]) -> None:
    drawn = []

    def faulty(*given: Any, **where: Any) -> Tensor:
        noise = draw(*given, **where)
        if drawn:
            noise[5, 7] = torch.nextafter(noise[5, 7], torch.tensor(9.0))
        drawn.append(noise)
        return noise

    assert kernels.different_numbers(draw, "cpu").figure == 0
    found = kernels.different_numbers(faulty, "cpu")
    assert found.figure == 1
    assert found.bound == 0


@pytest.mark.parametrize("fault", ["another seed", "the sweeps in reverse", "a larger noise"])
def test_wrong_chains_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = kernels.gibbs.gibbs
    turn = []

    def faulty(v: Tensor, W: Tensor, b: Tensor, c: Tensor, log_sigma: Tensor, stream: Any, sweeps: int) -> Any:
        turn.append(1)
        if len(turn) == 1:
            stream = {
                "another seed": stream._replace(key=Key(8, 12)),
                "the sweeps in reverse": stream._replace(key=Key(7, 11)),
                "a larger noise": stream,
            }[fault]
            log_sigma = log_sigma + 0.05 * (fault == "a larger noise")
        return right(v, W, b, c, log_sigma, stream, sweeps)

    monkeypatch.setattr(kernels.gibbs, "gibbs", faulty)
    found = kernels.other_units("cpu")
    assert found.bound is not None
    assert found.figure > found.bound


def test_a_kernel_that_raises_has_failed_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*size: int) -> kernels.Op:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setitem(kernels.OPS, "sliced_hvp", broken)
    found = list(run(kernels.kernels("cpu")))
    failed = [f for f in found if not f.passed]
    assert {f.check.split()[0] for f in failed} == {"sliced_hvp"}
    assert all("no kernel image is available" in f.problem for f in failed)
    assert found[-1].check == "gibbs"
    assert found[-1].passed
