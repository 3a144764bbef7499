"""ELU: every backend against torch's derivatives of the definition, in every memory order."""

import pytest
import torch
from torch.func import grad, vmap

from eblvm.kernels import elu_second_order as package
from eblvm.kernels.elu_second_order import elu_second_order, reference
from tests.kernels.comparison import backends, needs_native
from tests.kernels.elu_cases import ALPHA, SIZES, TOLERANCE, assert_close, by_autograd, derivatives, inputs

BACKENDS = backends(package)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_value_and_derivatives(backend, size, dtype, nan_filled) -> None:
    tensors = inputs(size, dtype)
    assert_close(derivatives(backend, *tensors), by_autograd(*tensors), TOLERANCE[dtype])


def test_it_is_torchs_elu() -> None:
    x, _, _ = inputs((257,))
    torch.testing.assert_close(elu_second_order(x, ALPHA), torch.nn.functional.elu(x, ALPHA), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_orders(backend) -> None:
    plain = inputs((2, 3, 5, 4))
    expected = by_autograd(*plain)
    last = tuple(t.to(memory_format=torch.channels_last) for t in plain)
    got = derivatives(backend, *last)
    assert_close(got, expected, 1e-13)
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in got)
    mixed = (last[0], plain[1], plain[2].transpose(1, 2).contiguous().transpose(1, 2))
    assert_close(derivatives(backend, *mixed), expected, 1e-13)
    strided = tuple(torch.stack([t, t], -1)[..., 0] for t in plain)
    assert_close(derivatives(backend, *strided), expected, 1e-13)


def test_gradcheck() -> None:
    x = torch.tensor([-3.0, -0.5, -0.01, 0.02, 1.0, 5.0], dtype=torch.float64).requires_grad_()
    for f in (lambda t: elu_second_order(t, ALPHA), lambda t: reference.value(t, ALPHA)):
        assert torch.autograd.gradcheck(f, x)
        assert torch.autograd.gradgradcheck(f, x)


def test_third_derivative() -> None:
    x = torch.tensor([-3.0, -0.5, 1.0], dtype=torch.float64)

    def third(f):
        once = grad(lambda t: f(t).sin().sum())
        return grad(lambda t: grad(lambda s: once(s).sin().sum())(t).sum())(x)

    torch.testing.assert_close(
        third(elu_second_order), third(lambda t: reference.value(t, 1.0)), rtol=1e-10, atol=1e-10
    )


def test_vmap_and_func_grad() -> None:
    x, g, _ = inputs((3, 5, 4))
    f = elu_second_order
    torch.testing.assert_close(vmap(f, in_dims=2, out_dims=2)(x), f(x), rtol=0, atol=0)
    gradient = vmap(grad(lambda t, w: (f(t) * w).sum()))
    torch.testing.assert_close(gradient(x, g), reference.first(g, x, 1.0), rtol=1e-13, atol=1e-13)
    curvature = vmap(grad(lambda t, w: grad(lambda s: (f(s) * w).sum())(t).sum()), in_dims=(1, 1), out_dims=1)
    ones = torch.ones_like(x)
    torch.testing.assert_close(curvature(x, g), reference.second(ones, g, x, 1.0)[1], rtol=1e-13, atol=1e-13)
    shared = vmap(grad(lambda t, w: (f(t) * w).sum()), in_dims=(None, 0))(x[0], g)
    torch.testing.assert_close(shared, reference.first(g, x[0].expand_as(g), 1.0), rtol=1e-13, atol=1e-13)


@needs_native(package)
def test_native_keeps_nan_and_saturates() -> None:
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([float("nan"), float("-inf"), float("inf"), -1e30], dtype=dtype)
        y = elu_second_order(x)
        assert y[0].isnan()
        assert y[1:].tolist() == [-1.0, float("inf"), -1.0]


def test_saves_its_input_alone() -> None:
    x = inputs((100,))[0].requires_grad_()
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.nbytes), t)[1], lambda t: t):
        elu_second_order(x)
    assert sum(saved) == x.nbytes


def test_errors_say_what_was_got() -> None:
    with pytest.raises(ValueError, match=r"x of dtype torch\.int64; expected a floating dtype"):
        elu_second_order(torch.arange(3))
    with pytest.raises(ValueError, match=r"alpha=0\.0; expected a positive number"):
        elu_second_order(torch.zeros(3), 0.0)


@needs_native(package)
def test_native_op_checks_its_arguments() -> None:
    x = torch.zeros(2, 3)
    for call, message in (
        (lambda: torch.ops.eblvm.elu_second_order(x.half(), 1.0), "x of dtype Half"),
        (lambda: torch.ops.eblvm.elu_second_order_first(x[:1], x, 1.0), "g of shape"),
        (lambda: torch.ops.eblvm.elu_second_order_second(x.double(), x, x, 1.0), "u of dtype Double"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
