"""Energy and score of a GRBM: every backend against torch's derivatives of the definition, and against the model."""

import pytest
import torch
from torch.func import grad, vjp, vmap

from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import grbm as package
from eblvm.kernels.grbm import grbm, reference
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
GIVEN = pytest.mark.parametrize("given", [True, False], ids=["energy", "free-energy"])


def through(backend):
    return lambda *tensors: package._value(backend, *tensors)


def case(given: bool, *arguments, **options) -> list:
    *tensors, h = inputs(*arguments, **options)
    return [*tensors, h if given else None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
@GIVEN
@pytest.mark.parametrize("backend", BACKENDS)
def test_value_and_derivatives(backend, given, replicas, size, dtype, nan_filled) -> None:
    tensors = case(given, size, dtype, replicas)
    assert_close(derivatives(through(backend), *tensors), derivatives(reference.value, *tensors), TOLERANCE[dtype])


@GIVEN
@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_inputs(backend, given) -> None:
    tensors = case(given, (7, 6, 5))
    assert_close(derivatives(through(backend), *strided(tensors)), derivatives(reference.value, *tensors), 1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@GIVEN
def test_only_what_is_wanted_is_computed(backend, given) -> None:
    assert_every_gradient_alone(through(backend), case(given, (7, 6, 5)))


@GIVEN
def test_gradcheck(given) -> None:
    assert_gradcheck(grbm, case(given, (3, 4, 2)))
    assert_gradcheck(lambda *t: reference.value(*t)[:2], case(given, (3, 4, 2)))


def test_it_is_the_models_energy_and_score() -> None:
    v, W, b, c, log_sigma, h = inputs((5, 4, 3))
    theta = {"W": W, "b": b, "c": c, "log_sigma": log_sigma}

    def model(method, *arguments):
        return getattr(GRBM(4, 3).at(theta), method)(*arguments)

    for name, more in (("free_energy", ()), ("energy", (h,))):
        energy, pull = vjp(lambda x, name=name, more=more: model(name, x, *more), v)
        got = grbm(v, W, b, c, log_sigma, *more)
        torch.testing.assert_close(got, (energy, -pull(torch.ones_like(energy))[0]), rtol=1e-12, atol=1e-12)


@GIVEN
def test_vmap_and_func_grad(given) -> None:
    tensors = case(given, (5, 4, 3), replicas=(3,))
    dims = tuple(None if t is None else 0 for t in tensors)

    def loss(*t):
        energy, score = grbm(*t)
        return energy.sin().sum() + score.square().sum()

    def curved(*t):
        return sum(g.sin().sum() for g in grad(loss, argnums=(0, 1, 4))(*t))

    torch.testing.assert_close(vmap(grbm, in_dims=dims)(*tensors), grbm(*tensors), rtol=1e-13, atol=1e-13)
    for f in (grad(loss, argnums=(0, 1, 2, 3, 4)), grad(curved, argnums=(0, 1, 2, 3, 4))):
        mapped = vmap(f, in_dims=dims)(*tensors)
        single = [f(*(t if t is None else t[r] for t in tensors)) for r in range(3)]
        assert_close(mapped, [torch.stack(parts) for parts in zip(*single, strict=True)], 1e-12)
    leaves = [t if t is None else t[0].clone().requires_grad_() for t in tensors]
    wanted = leaves[:5]
    (first,) = torch.autograd.grad(loss(*leaves), wanted[1], create_graph=True)
    assert_close([grad(loss, argnums=1)(*leaves).detach()], [first.detach()], 1e-12)


def test_vmap_over_the_batches_alone() -> None:
    v, W, b, c, log_sigma, _ = inputs((5, 4, 3))
    batches = torch.stack([v, v + 1], 1)
    energy, score = vmap(lambda x: grbm(x, W, b, c, log_sigma), in_dims=1, out_dims=1)(batches)
    torch.testing.assert_close(energy[:, 1], grbm(v + 1, W, b, c, log_sigma)[0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(score[:, 1], grbm(v + 1, W, b, c, log_sigma)[1], rtol=1e-13, atol=1e-13)


@GIVEN
def test_third_derivative(given) -> None:
    tensors = case(given, (2, 3, 2))

    def third(f):
        def curve(v, *rest):
            return grad(lambda x: sum(t.sin().sum() for t in f(x, *rest)[:2]))(v)

        once = grad(lambda *t: curve(*t).sin().sum())
        return grad(lambda *t: once(*t).sum(), argnums=1)(*tensors)

    torch.testing.assert_close(third(grbm), third(reference.value), rtol=1e-10, atol=1e-10)


@needs_native(package)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_native_at_the_edges(dtype) -> None:
    """Saturated units stay finite, NaN stays NaN."""
    v, W, b, c, log_sigma, _ = inputs((5, 4, 3), dtype)
    c = torch.tensor([-1e4, 1e4, 90.0], dtype=dtype)
    results = derivatives(through(package._Native), v, W, b, c, log_sigma, None)
    assert all(t.isfinite().all() for t in results)
    assert_close(results, derivatives(reference.value, v, W, b, c, log_sigma, None), 1e-5)
    broken = through(package._Native)(torch.full_like(v, float("nan")), W, b, c, log_sigma, None)
    assert all(t.isnan().all() for t in broken)


@needs_native(package)
def test_more_threads_change_nothing() -> None:
    assert_same_with_two_threads(through(package._Native), case(False, (63, 100, 37), replicas=(9,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"W": torch.zeros(4)}, r"grbm got W of shape \(4,\); expected \[\.\.\., D, H\]"),
        ({"W": torch.zeros(4, 3).long()}, r"W of dtype torch\.int64; expected a floating dtype"),
        ({"v": torch.zeros(4)}, r"v of shape \(4,\); expected \('B', 4\)"),
        ({"v": torch.zeros(5, 3)}, r"v of shape \(5, 3\); expected \(5, 4\)"),
        ({"b": torch.zeros(3)}, r"b of shape \(3,\); expected \(4,\)"),
        ({"c": torch.zeros(3).double()}, r"c of dtype torch\.float64; expected that of W, torch\.float32"),
        ({"log_sigma": torch.zeros(4, device="meta")}, "log_sigma of device meta; expected that of W, cpu"),
        ({"h": torch.zeros(5, 4)}, r"h of shape \(5, 4\); expected \(5, 3\)"),
    ],
)
def test_errors_say_what_was_got(change, message) -> None:
    names = ("v", "W", "b", "c", "log_sigma", "h")
    arguments = dict(zip(names, inputs((5, 4, 3), torch.float32), strict=True)) | change
    with pytest.raises(ValueError, match=message):
        grbm(**arguments)


@needs_native(package)
def test_native_op_checks_its_arguments() -> None:
    v, W, b, c, log_sigma, h = inputs((5, 4, 3))
    op, first = torch.ops.eblvm.grbm, torch.ops.eblvm.grbm_first
    for call, message in (
        (lambda: op(v, W.half(), b, c, log_sigma, None), "W of dtype Half"),
        (lambda: op(v, W[0], b, c, log_sigma, None), "W of shape"),
        (lambda: op(v[0], W, b, c, log_sigma, None), "v of shape"),
        (lambda: op(v, W, b, c, log_sigma, h[:2]), "h of shape"),
        (lambda: op(v, W, b.float(), c, log_sigma, None), "b of dtype Float"),
        (lambda: first(v, v, h, v, W, b, c, log_sigma, None, True, False), "g of shape"),
        (lambda: first(v[:, 0], v, v, v, W, b, c, log_sigma, None, True, False), "kept of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@needs_native(package)
@GIVEN
@pytest.mark.parametrize("wanted", [slice(1, 5), slice(0, 6)], ids=["parameters", "all"])
def test_flops(given, wanted) -> None:
    tensors = case(given, (40, 41, 43))
    leaves = [t.requires_grad_() for t in tensors[wanted] if t is not None]
    assert_flops_are_those_of_its_products(
        lambda: torch.autograd.grad([t.sum() for t in through(package._Native)(*tensors)[:2]], leaves)
    )
