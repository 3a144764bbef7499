"""The differentiable Adam step: every backend against torch's derivatives of the definition."""

import pytest
import torch
from torch.func import grad, vmap

from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.base import Moments, Weights
from eblvm.kernels import adam_unroll
from eblvm.kernels.adam_unroll import Rule, adam_unroll_, reference
from eblvm.kernels.adam_unroll import adam_unroll as step
from tests.kernels.adam_cases import (
    ORDERS,
    RULE,
    SIZES,
    TOLERANCE,
    check_in_place,
    check_non_contiguous,
    derivatives,
    inputs,
    plain,
    through,
)
from tests.kernels.comparison import assert_close, backends, needs_native

BACKENDS = backends(adam_unroll)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_value_and_derivatives(backend, size, dtype, nan_filled) -> None:
    tensors = inputs(size, dtype)
    assert_close(derivatives(through(backend), *tensors), derivatives(plain, *tensors), TOLERANCE[dtype])


@pytest.mark.parametrize("backend", BACKENDS)
def test_replicas_equal_single_runs(backend) -> None:
    tensors = inputs((7, 5), replicas=(3,))
    together = derivatives(through(backend), *tensors)
    for r in range(3):
        alone = derivatives(through(backend), *(x[r] for x in tensors))
        assert_close([x[r] for x in together], alone, 1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_inputs(backend) -> None:
    check_non_contiguous(backend)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place(backend, order, size, replicas, dtype) -> None:
    check_in_place(backend, size, dtype, replicas, ORDERS[order])


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_place_of_many_parameters_at_once(backend, clip_norm) -> None:
    many = [inputs(size) for size in ((5, 4), (7,), ())]
    t, lr = many[0][4:]
    p, g, m, v = (list(x) for x in zip(*(one[:4] for one in many), strict=True))
    norm = torch.cat([x.flatten() for x in g]).norm()
    scale = 1 if clip_norm is None else clip_norm / norm
    expected = [reference.step(p_i, scale * g_i, m_i, v_i, t, lr, RULE) for p_i, g_i, m_i, v_i, *_ in many]
    counted = adam_unroll._steps_(backend, p, g, m, v, t - 1, lr, RULE, 0.0, clip_norm)
    assert_close(list(counted), [t, norm], 1e-12)
    for moved, values in zip(zip(p, m, v, strict=True), expected, strict=True):
        assert_close(list(moved), list(values), 1e-11)


def test_in_place_with_a_gradient_missing() -> None:
    p, g, m, v, t, lr = inputs((5,))
    with pytest.raises(ValueError, match="got 2, 1, 2 and 2 of p, g, m and v; expected as many of each, at least one"):
        adam_unroll_([p, p], [g], [m, m], [v, v], t, lr)
    with pytest.raises(ValueError, match="at least one"):
        adam_unroll_([], [], [], [], t, lr)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_norm_that_is_no_number_shows_everywhere(backend) -> None:
    p, g, m, v, t, lr = inputs((5,))
    g[2] = float("nan")
    _, norm = adam_unroll._steps_(backend, [p], [g], [m], [v], t - 1, lr, RULE, 0.0, 1.0)
    assert norm.isnan()
    assert p.isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_the_engines_adam(backend) -> None:
    p, g, m, v, t, lr = inputs((5, 4))
    adam = Adam((RULE.b1, RULE.b2), RULE.eps, RULE.eps_root)
    moved = adam.step(Weights({"p": p}, Moments({"p": m}, {"p": v}, t - 1)), {"p": g}, lr)
    got = adam_unroll._step(backend, p, g, m, v, t, lr, RULE)
    assert_close(list(got), [moved.params["p"], moved.moments.m["p"], moved.moments.v["p"]], 1e-14)


def test_gradient_is_finite_at_zero_moments() -> None:
    p, _, _, _, t, lr = inputs((4,))
    g, m, v = (torch.zeros(4, dtype=torch.float64).requires_grad_() for _ in range(3))
    moved, *_ = step(p, g, m, v, t, lr, RULE)
    assert all(x.isfinite().all() for x in torch.autograd.grad(moved.sum(), (g, m, v)))


def test_gradcheck() -> None:
    *tensors, t, lr = inputs((3,))
    rule = Rule(eps_root=1e-2)
    leaves = [x.requires_grad_() for x in tensors]
    for f in (lambda *x: step(*x, t, lr, rule), lambda *x: reference.step(*x, t, lr, rule)):
        assert torch.autograd.gradcheck(f, leaves)
        assert torch.autograd.gradgradcheck(f, leaves)


def test_vmap_and_func_grad() -> None:
    tensors = inputs((4, 3), replicas=(3,))

    def loss(*x):
        moved, m, v = step(*x, RULE)
        return moved.sin().sum() + m.cos().sum() + v.sum()

    def loss_of_reference(*x):
        moved, m, v = reference.step(*x, RULE)
        return moved.sin().sum() + m.cos().sum() + v.sum()

    for transform in (
        lambda f: f,
        lambda f: grad(f, argnums=(0, 1, 2, 3)),
        lambda f: grad(lambda *x: grad(f, argnums=1)(*x).sin().sum(), argnums=(1, 2)),
    ):
        got = vmap(transform(loss))(*tensors)
        torch.testing.assert_close(got, vmap(transform(loss_of_reference))(*tensors), rtol=1e-9, atol=1e-9)
    p, g, m, v, t, lr = tensors
    moved = vmap(lambda p, t, lr: step(p, g[0], m[0], v[0], t, lr, RULE)[0], in_dims=(1, 0, 0))(p.movedim(0, 1), t, lr)
    for r in range(3):
        torch.testing.assert_close(moved[r], reference.step(p[r], g[0], m[0], v[0], t[r], lr[r], RULE)[0])


def test_saves_three_times_the_parameters() -> None:
    *tensors, t, lr = inputs((100,))
    leaves = [x.requires_grad_() for x in tensors]
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (saved.append(x.nbytes), x)[1], lambda x: x):
        step(*leaves, t, lr, RULE)
    assert sum(saved) == 3 * leaves[0].nbytes + 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: torch.zeros(3)}, r"g of shape \(3,\); expected \(4,\)"),
        ({2: torch.zeros(4).double()}, "m of dtype torch.float64; expected that of p, torch.float32"),
        ({3: torch.zeros(4, device="meta")}, "v of device meta; expected that of p, cpu"),
        ({4: torch.ones(3)}, r"t of shape \(3,\); expected \[\] or leading axes of p \(4,\)"),
        ({5: torch.ones(4)}, r"lr of shape \(4,\); expected \(\)"),
        ({4: torch.tensor(1)}, "t of dtype torch.int64"),
        ({5: torch.tensor(0.1, requires_grad=True)}, "lr that requires grad"),
    ],
)
def test_errors_say_what_was_got(change, message) -> None:
    arguments = inputs((4,), torch.float32)
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(ValueError, match=message):
        step(*arguments)
    integers = [torch.zeros(4, dtype=torch.int64)] * 4
    with pytest.raises(ValueError, match=r"p of dtype torch\.int64"):
        step(*integers, *arguments[4:])


def test_a_gradient_for_lr_is_an_error_under_func() -> None:
    *tensors, t, lr = inputs((4,))
    with pytest.raises((RuntimeError, ValueError), match="lr"):
        grad(lambda rate: step(*tensors, t, rate, RULE)[0].sum())(lr)


@needs_native(adam_unroll)
def test_native_op_checks_its_arguments() -> None:
    p, g, m, v, t, lr = inputs((4,), torch.float32)
    for arguments, message in (
        ((p[:1], g, m, v, t, lr), "p of shape"),
        ((p, g, m.double(), v, t, lr), "m of dtype"),
        ((p, g, m, v, t.view(1), lr), "shape"),
        ((p, g, m, v, t, lr.double()), "lr of dtype"),
        ((p.half(), g.half(), m.half(), v.half(), t.half(), lr.half()), "g of dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            torch.ops.eblvm.adam_unroll(*arguments, *RULE)
