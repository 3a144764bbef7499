"""The pointwise part of the lower step: every backend against torch's derivatives of the definition."""

import pytest
import torch
from torch.func import grad, vmap

from eblvm.kernels import bernoulli_lower, philox
from eblvm.kernels.bernoulli_lower import Stream, reference
from eblvm.kernels.bernoulli_lower import bernoulli_lower as kl
from eblvm.kernels.philox import Key
from tests.kernels.bernoulli_cases import (
    NOISES,
    PURPOSE,
    SIZES,
    TAU,
    TOLERANCE,
    by_autograd,
    derivatives,
    inputs,
    noise_of,
)
from tests.kernels.comparison import assert_close, backends, needs_native

BACKENDS = backends(bernoulli_lower)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_value_and_derivatives(backend, noise, size, dtype, nan_filled) -> None:
    logits, x = inputs(size, dtype)
    n = noise_of(noise, logits)
    assert_close(derivatives(backend, logits, x, n), by_autograd(logits, x, n), TOLERANCE[dtype])


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_replicas_equal_single_runs(backend, noise) -> None:
    logits, x = inputs((3, 5, 7))
    n = noise_of(noise, logits)
    together = derivatives(backend, logits, x, n)
    for r in range(3):
        one = n
        if isinstance(n, Stream):
            one = n._replace(key=Key(n.key.seed[r], n.key.step))
        elif n is not None:
            one = n[r]
        assert_close([together[0][r]], derivatives(backend, logits[r], x[r], one)[:1], 1e-14)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_inputs(backend, noise) -> None:
    logits, x = (t.transpose(0, 1)[::2] for t in inputs((9, 14)))
    n = noise_of(noise, logits)
    if isinstance(n, torch.Tensor):
        n = n.T.contiguous().T
    expected = by_autograd(logits.contiguous(), x.contiguous(), n)
    assert_close(derivatives(backend, logits, x, n), expected, 1e-12)


@pytest.mark.parametrize("noise", NOISES)
def test_gradcheck_of_the_op(noise) -> None:
    logits, x = (t.requires_grad_() for t in inputs((2, 4)))
    n = noise_of(noise, logits)
    assert torch.autograd.gradcheck(lambda a, b: kl(a, b, n, TAU), (logits, x))
    assert torch.autograd.gradgradcheck(lambda a, b: kl(a, b, n, TAU), (logits, x))
    drawn = bernoulli_lower._drawn(logits, None, torch.tensor(3), 0, 0, 0, TAU)[0] if noise == "drawn" else n
    assert torch.autograd.gradcheck(lambda a, b: reference.value(a, b, drawn, TAU), (logits, x))
    assert torch.autograd.gradgradcheck(lambda a, b: reference.value(a, b, drawn, TAU), (logits, x))


@pytest.mark.parametrize("noise", NOISES)
def test_third_derivative(noise) -> None:
    logits, x = inputs((2, 3))
    n = noise_of(noise, logits)
    drawn = n if not isinstance(n, Stream) else noise_of("given", logits)

    def third(f):
        once = grad(lambda a: f(a).sum())
        return grad(lambda a: grad(lambda b: once(b).sin().sum())(a).cos().sum())(logits)

    torch.testing.assert_close(
        third(lambda a: kl(a, x, n, TAU)), third(lambda a: reference.value(a, x, drawn, TAU)), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("noise", NOISES)
def test_vmap_and_func_grad(noise) -> None:
    logits, x = inputs((3, 5, 7))
    n = noise_of(noise, logits)
    expected = kl(logits, x, n, TAU)
    gradient = torch.autograd.grad(kl(logits.requires_grad_(), x, n, TAU).sum(), logits)[0]
    logits = logits.detach()

    def one(l, x, seed_or_noise):  # noqa: E741
        own = n._replace(key=Key(seed_or_noise, n.key.step)) if isinstance(n, Stream) else seed_or_noise
        return kl(l, x, own, TAU)

    own = n.key.seed if isinstance(n, Stream) else n
    dims = (1, 0, None if own is None else 0)
    moved = logits.movedim(0, 1)
    torch.testing.assert_close(vmap(one, in_dims=dims)(moved, x, own), expected, rtol=1e-13, atol=1e-13)
    by_func = vmap(grad(lambda *a: one(*a).sum()), in_dims=dims)(moved, x, own)
    torch.testing.assert_close(by_func, gradient, rtol=1e-13, atol=1e-13)
    curvature = vmap(grad(lambda *a: grad(lambda *b: one(*b).sum())(*a).sin().sum()), in_dims=dims)(moved, x, own)
    leaf = logits.requires_grad_()
    (g,) = torch.autograd.grad(kl(leaf, x, n, TAU).sum(), leaf, create_graph=True)
    torch.testing.assert_close(curvature, torch.autograd.grad(g.sin().sum(), leaf)[0], rtol=1e-12, atol=1e-12)


def test_drawn_noise_is_the_philox_stream() -> None:
    logits, x = inputs((5, 7))
    n = philox.logistic(Key(8, 3), PURPOSE, 5, (7,), first=11, dtype=torch.float64)
    for backend in (bernoulli_lower.Reference, *([bernoulli_lower._Native] if bernoulli_lower._NATIVE else [])):
        got = derivatives(backend, logits, x, Stream(Key(8, 3), PURPOSE, 11))
        assert all(torch.equal(a, b) for a, b in zip(got, derivatives(backend, logits, x, n), strict=True))


def test_saved_bytes_with_drawn_noise() -> None:
    """A stream saves only its inputs for backward."""
    logits, x = (t.requires_grad_() for t in inputs((5, 7)))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.nbytes), t)[1], lambda t: t):
        kl(logits, x, Stream(Key(8, 3), PURPOSE), TAU)
    assert sum(saved) == logits.nbytes + x.nbytes + 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@needs_native(bernoulli_lower)
def test_native_at_the_edges(dtype) -> None:
    """Saturated logits stay finite, NaN stays NaN."""
    logits = torch.tensor([[-1e4, 1e4, 0.0, 90.0, -90.0]], dtype=dtype)
    x = torch.ones_like(logits)
    for noise in (None, torch.zeros_like(logits)):
        results = derivatives(bernoulli_lower._Native, logits, x, noise)
        assert all(t.isfinite().all() for t in results)
        assert_close(results, by_autograd(logits, x, noise), 1e-5)
    broken = torch.full_like(logits, float("nan"))
    assert all(t.isnan().all() for t in derivatives(bernoulli_lower._Native, broken, x, None)[:3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: kl(a[0], a[0], None), r"logits of shape \(4,\); expected \[..., B, H\]"),
        (lambda a: kl(a.long(), a, None), "logits of dtype torch.int64"),
        (lambda a: kl(a, a[:1], None), r"x of shape \(1, 4\); expected that of logits, \(2, 4\)"),
        (lambda a: kl(a, a.double(), None), "x of dtype torch.float64; expected that of logits, torch.float32"),
        (lambda a: kl(a, a.to("meta"), None), "x of device meta; expected that of logits, cpu"),
        (lambda a: kl(a, a, a[:, :1], 0.1), r"noise of shape \(2, 1\)"),
        (lambda a: kl(a, a, a, 0.0), "tau=0.0; expected a positive"),
        (lambda a: kl(a, a, a.clone().requires_grad_(), 0.1), "noise that requires grad"),
        (lambda a: kl(a, a, Stream(Key(torch.arange(3), 0), 1), 0.1), r"seeds of shape \(3,\)"),
        (lambda a: kl(a, a, Stream(Key(torch.tensor(1.0), 0), 1), 0.1), "Key.seed of dtype torch.float32"),
    ],
)
def test_errors_say_what_was_got(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(2, 4))


@needs_native(bernoulli_lower)
def test_native_op_checks_its_arguments() -> None:
    op, a = torch.ops.eblvm.bernoulli_lower, torch.zeros(2, 4)
    rest = (None, None, 0, 0, 0, 1.0)
    for arguments, message in (
        ((a[0], a[0], *rest), "logits of shape"),
        ((a.half(), a.half(), *rest), "logits of dtype"),
        ((a, a[:1], *rest), "x of shape"),
        ((a, a.double(), *rest), "x of dtype"),
        ((a, a, a[:1], *rest[1:]), "noise of shape"),
        ((a, a, None, torch.tensor([1]), *rest[2:]), "seeds of shape"),
    ):
        with pytest.raises(ValueError, match=message):
            op(*arguments)
