"""The Triton ELU of a sum against torch's derivatives of the definition."""

import pytest
import torch

from eblvm.kernels.elu_of_sum import reference, triton
from tests.kernels.elu_of_sum_cases import SIZES, TOLERANCE, assert_close, by, derivatives, expected, inputs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_derivatives(size, dtype, bias, nan_filled) -> None:
    x, r, b, g = inputs(size, dtype)
    given = x, r, b if bias else None, g
    assert_close(derivatives(by(triton), *given), expected(*given), TOLERANCE[dtype])


def test_every_order_alone(nan_filled) -> None:
    x, r, b, g = inputs((3, 5, 9, 11))
    torch.testing.assert_close(triton.value(x, r, b), reference.value(x, r, b), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(triton.value(x, None, b), reference.value(x, None, b), rtol=1e-13, atol=1e-13)
    for added in ((None, None), (r, None), (r, x)):
        got = triton.first(g, *added, x)
        torch.testing.assert_close(got, reference.first(g, *added, x), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(triton.second(r, g, r, x), reference.second(r, g, r, x), rtol=1e-13, atol=1e-13)


def test_memory_orders() -> None:
    plain = inputs((2, 3, 5, 4))
    wanted = expected(*plain)
    last = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in plain]
    assert_close(derivatives(by(triton), *last), wanted, 1e-12)
    assert triton.value(*last[:3])[1].is_contiguous(memory_format=torch.channels_last)
    assert_close(derivatives(by(triton), last[0], *plain[1:]), wanted, 1e-12)
    strided = [torch.stack([t, t], -1)[..., 0] if t.dim() == 4 else t for t in plain]
    assert_close(derivatives(by(triton), *strided), wanted, 1e-12)


def test_half_precision_rounds_the_sum_once() -> None:
    x, r, b, _ = inputs((2, 3, 5, 4), torch.float16)
    s, y = triton.value(x, r, b)
    exact = (x.float() + r.float() + b.float().view(-1, 1, 1)).to(torch.float16)
    assert torch.equal(s, exact)
    torch.testing.assert_close(y, torch.nn.functional.elu(exact.float()).to(torch.float16), rtol=1e-3, atol=0)


def test_the_end_of_a_net_of_16_bits() -> None:
    x, r, b, g = inputs((2, 3, 5, 4), torch.float16)
    u = g.float()
    exact = reference.value(x, r, b, torch.float32)[1]
    torch.testing.assert_close(triton.value(x, r, b, torch.float32)[1], exact, rtol=4e-3, atol=4e-3)
    for got, wanted in (
        ([triton.first(u, r, x, x)], [reference.first(u, r, x, x)]),
        (triton.second(r, g, u, x), reference.second(r, g, u, x)),
    ):
        assert [t.dtype for t in got] == [t.dtype for t in wanted]
        torch.testing.assert_close(list(got), list(wanted), rtol=4e-3, atol=4e-3)
