"""Sliced score matching terms of a GRBM: every backend against torch's derivatives, and against the model's Hessian."""

import pytest
import torch
from torch.func import grad, jacrev, vmap

from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import sliced_hvp as package
from eblvm.kernels.sliced_hvp import reference, sliced_hvp
from tests.kernels.comparison import assert_close, backends, needs_native
from tests.kernels.grbm_cases import (
    SIZES,
    TOLERANCE,
    assert_every_gradient_alone,
    assert_flops_are_those_of_its_products,
    assert_gradcheck,
    assert_same_with_two_threads,
    derivatives,
    inputs,
    strided,
)

BACKENDS = backends(package)


def through(backend):
    return lambda *tensors: package._value(backend, *tensors)


def case(*arguments, M: int = 2, **options) -> list:
    """v, u, W, b, c, log_sigma."""
    v, *parameters, u = inputs(*arguments, M=M, **options)
    return [v, u, *parameters]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("replicas", "M"), [((), 1), ((), 3), ((3,), 2)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_value_and_derivatives(backend, replicas, M, size, dtype, nan_filled) -> None:
    tensors = case(size, dtype, replicas, M=M)
    assert_close(derivatives(through(backend), *tensors), derivatives(reference.value, *tensors), TOLERANCE[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_inputs(backend) -> None:
    tensors = case((7, 6, 5))
    assert_close(derivatives(through(backend), *strided(tensors)), derivatives(reference.value, *tensors), 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_what_is_wanted_is_computed(backend) -> None:
    assert_every_gradient_alone(through(backend), case((7, 6, 5)))


def test_gradcheck() -> None:
    assert_gradcheck(sliced_hvp, case((3, 4, 2)))
    assert_gradcheck(lambda *t: reference.value(*t)[:2], case((3, 4, 2)))


def test_it_is_the_models_hessian() -> None:
    v, u, W, b, c, log_sigma = case((5, 4, 3))
    theta = {"W": W, "b": b, "c": c, "log_sigma": log_sigma}

    def score(x):
        return grad(lambda y: -GRBM(4, 3).at(theta).free_energy(y).sum())(x)

    half_square, curvature = sliced_hvp(v, u, W, b, c, log_sigma)
    hessian = vmap(jacrev(lambda x: score(x[None])[0]))(v)
    expected = torch.einsum("mbi,bij,mbj->mb", u, hessian, u)
    torch.testing.assert_close(half_square, 0.5 * score(v).square().sum(-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(curvature, expected, rtol=1e-12, atol=1e-12)


def test_all_sign_directions_give_the_trace() -> None:
    """The mean of u u^T over all 2^D sign vectors is the identity: there Hutchinson's estimate is the trace."""
    v, _, W, b, c, log_sigma = case((5, 4, 3))
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=v.dtype)] * 4)
    _, curvature = sliced_hvp(v, signs[:, None].expand(-1, 5, -1), W, b, c, log_sigma)
    theta = {"W": W, "b": b, "c": c, "log_sigma": log_sigma}
    trace = GRBM(4, 3).at(theta).laplacian(v)
    torch.testing.assert_close(curvature.mean(0), trace, rtol=1e-12, atol=1e-12)


def test_replicas_follow_the_directions() -> None:
    v, u, *parameters = case((5, 4, 3), replicas=(3,))
    half_square, curvature = sliced_hvp(v, u.movedim(1, 0), *parameters)
    assert half_square.shape == (3, 5)
    assert curvature.shape == (2, 3, 5)
    for r in range(3):
        one = sliced_hvp(v[r], u[r], *(p[r] for p in parameters))
        assert_close([half_square[r], curvature[:, r]], one, 1e-13)


def test_vmap_and_func_grad() -> None:
    tensors = case((5, 4, 3), replicas=(3,))

    def loss(*t):
        half_square, curvature = sliced_hvp(*t)
        return half_square.sin().sum() + curvature.square().sum()

    def curved(*t):
        return sum(g.sin().sum() for g in grad(loss, argnums=(0, 1, 2))(*t))

    v, u, *parameters = tensors
    got = vmap(sliced_hvp)(*tensors)
    half_square, curvature = sliced_hvp(v, u.movedim(1, 0), *parameters)
    assert_close(got, [half_square, curvature.movedim(0, 1)], 1e-13)
    for f in (grad(loss, argnums=tuple(range(6))), grad(curved, argnums=tuple(range(6)))):
        single = [f(*(t[r] for t in tensors)) for r in range(3)]
        assert_close(vmap(f)(*tensors), [torch.stack(parts) for parts in zip(*single, strict=True)], 1e-12)
    leaves = [t[0].clone().requires_grad_() for t in tensors]
    first = torch.autograd.grad(loss(*leaves), leaves)
    assert_close([g.detach() for g in grad(loss, argnums=tuple(range(6)))(*leaves)], first, 1e-12)


def test_third_derivative() -> None:
    tensors = case((2, 3, 2))

    def third(f):
        def curve(*t):
            return grad(lambda *s: sum(x.sin().sum() for x in f(*s)[:2]), argnums=2)(*t)

        once = grad(lambda *t: curve(*t).sin().sum())
        return grad(lambda *t: once(*t).sum(), argnums=2)(*tensors)

    torch.testing.assert_close(third(sliced_hvp), third(reference.value), rtol=1e-10, atol=1e-10)


@needs_native(package)
def test_more_threads_change_nothing() -> None:
    assert_same_with_two_threads(through(package._Native), case((63, 100, 37), replicas=(9,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W": torch.zeros(4)}, r"sliced_hvp got W of shape \(4,\); expected \[\.\.\., D, H\]"),
        ({"v": torch.zeros(5, 3)}, r"v of shape \(5, 3\); expected \(5, 4\)"),
        ({"u": torch.zeros(5, 4)}, r"u of shape \(5, 4\); expected \('M', 5, 4\)"),
        ({"u": torch.zeros(2, 5, 4).double()}, r"u of dtype torch\.float64; expected that of v, torch\.float32"),
        ({"u": torch.zeros(2, 5, 4, device="meta")}, "u of device meta; expected that of v, cpu"),
        ({"c": torch.zeros(4)}, r"c of shape \(4,\); expected \(3,\)"),
    ],
)
def test_errors_say_what_was_got(change, message) -> None:
    names = ("v", "u", "W", "b", "c", "log_sigma")
    arguments = dict(zip(names, case((5, 4, 3), torch.float32), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        sliced_hvp(**arguments)


@needs_native(package)
def test_native_op_checks_its_arguments() -> None:
    v, u, W, b, c, log_sigma = case((5, 4, 3))
    op = torch.ops.eblvm.sliced_hvp
    for call, message in (
        (lambda: op(v, u[0], W, b, c, log_sigma), "u of shape"),
        (lambda: op(v, u[:, :2], W, b, c, log_sigma), "u of shape"),
        (lambda: op(v, u.float(), W, b, c, log_sigma), "u of dtype Float"),
        (lambda: op(v, u, W, b[:2], c, log_sigma), "b of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@needs_native(package)
@pytest.mark.parametrize("wanted", [slice(2, 6), slice(0, 6)], ids=["parameters", "all"])
def test_flops(wanted) -> None:
    tensors = case((40, 41, 43), M=3)
    leaves = [t.requires_grad_() for t in tensors[wanted]]
    assert_flops_are_those_of_its_products(
        lambda: torch.autograd.grad([t.sum() for t in through(package._Native)(*tensors)[:2]], leaves)
    )
