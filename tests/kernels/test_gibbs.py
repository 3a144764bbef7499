"""Block Gibbs sweeps: every backend against the definition, noise against Philox, distributions against the model."""

import pytest
import torch
from torch.func import vmap

from eblvm.engine.nets.grbm import GRBM
from eblvm.kernels import gibbs as package
from eblvm.kernels.gibbs import Stream, gibbs, reference
from eblvm.kernels.philox import Key
from tests.kernels.gibbs_cases import SIZES, STREAM, SWEEPS, by_definition, drawn, inputs, raw, stream

needs_native = pytest.mark.skipif(not package._NATIVE, reason="the native library is not built")
BACKENDS = [
    pytest.param(reference.gibbs, id="reference"),
    pytest.param(lambda *a: torch.ops.eblvm.gibbs(*a), id="native", marks=needs_native),
]


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 5, 4), (2, 7, 3)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sweeps_are_the_definition(backend, size) -> None:
    tensors, pairs = inputs(size), drawn(size, torch.float64, STREAM)
    torch.testing.assert_close(backend(*raw(tensors, pairs)), by_definition(tensors, pairs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("replicas", [(), (3,)], ids=str)
@pytest.mark.parametrize("kind", ["given", "drawn"])
@needs_native
def test_native_equals_reference(kind, replicas, size, nan_filled) -> None:
    tensors, noise = inputs(size, replicas=replicas), stream(replicas)
    given = noise if kind == "drawn" else drawn(size, torch.float64, noise)
    got = torch.ops.eblvm.gibbs(*raw(tensors, given))
    torch.testing.assert_close(got, reference.gibbs(*raw(tensors, given)), rtol=1e-11, atol=1e-11)


@needs_native
def test_native_in_float32() -> None:
    """One sweep: nearly all decisions are those of float64; where they are, so are the values."""
    size = (63, 100, 37)
    tensors = inputs(size)
    arguments = raw(tensors, STREAM)[:-1]
    exact, _ = reference.gibbs(*arguments, 1)
    single = [t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in arguments]
    got, _ = torch.ops.eblvm.gibbs(*single, 1)
    assert got.dtype == torch.float32
    same = ((got.double() - exact).abs() < 1e-4).double().mean()
    assert same > 0.98


@pytest.mark.parametrize("size", [(63, 5, 3), (3, 100, 257)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_stream_is_the_philox_noise(backend, size) -> None:
    tensors = inputs(size)
    got = backend(*raw(tensors, STREAM))
    torch.testing.assert_close(got, backend(*raw(tensors, drawn(size, torch.float64, STREAM))), rtol=0, atol=0)


def test_it_is_a_sweep_of_the_models_conditionals() -> None:
    size, energy = (7, 5, 4), GRBM(5, 4)
    v, W, b, c, log_sigma = inputs(size)
    theta, pairs = {"W": W, "b": b, "c": c, "log_sigma": log_sigma}, drawn(size, torch.float64, STREAM)
    expected = v, v
    for u, n in pairs:
        h = (u < torch.sigmoid(energy.at(theta).posterior_logits(expected[0]))).double()
        mean, sigma = energy.at(theta).conditional_v(h)
        expected = mean + sigma * n, mean
    torch.testing.assert_close(gibbs(v, W, b, c, log_sigma, pairs), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gibbs(v, W, b, c, log_sigma, STREAM, SWEEPS), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_inputs(backend) -> None:
    tensors, pairs = inputs((7, 5, 4)), drawn((7, 5, 4), torch.float64, STREAM)
    strided = [torch.stack([t, t], -1)[..., 0] for t in tensors]
    strided_pairs = [tuple(torch.stack([t, t], -1)[..., 0] for t in pair) for pair in pairs]
    torch.testing.assert_close(
        backend(*raw(strided, strided_pairs)), backend(*raw(tensors, pairs)), rtol=1e-13, atol=1e-13
    )


def test_vmap_over_replicas() -> None:
    replicas, size = (3,), (7, 5, 4)
    tensors, noise = inputs(size, replicas=replicas), stream(replicas)
    expected = gibbs(*tensors, noise, SWEEPS)
    mapped = vmap(lambda seed, *t: gibbs(*t, noise._replace(key=Key(seed, 7)), SWEEPS))(noise.key.seed, *tensors)
    torch.testing.assert_close(mapped, expected, rtol=1e-13, atol=1e-13)
    for r in range(3):
        one = gibbs(*(t[r] for t in tensors), noise._replace(key=Key(noise.key.seed[r], 7)), SWEEPS)
        torch.testing.assert_close((expected[0][r], expected[1][r]), one, rtol=1e-13, atol=1e-13)
    # Chains mapped, one set of parameters.
    chains = vmap(lambda v: gibbs(v, *(t[0] for t in tensors[1:]), STREAM, SWEEPS)[0], in_dims=1)(
        tensors[0].movedim(0, 1)
    )
    for r in range(3):
        alone, _ = gibbs(tensors[0][r], *(t[0] for t in tensors[1:]), STREAM, SWEEPS)
        torch.testing.assert_close(chains[r], alone, rtol=1e-13, atol=1e-13)


def test_samples_carry_no_gradient_and_leave_their_start() -> None:
    tensors = [t.requires_grad_() for t in inputs((7, 5, 4))]
    before = tensors[0].detach().clone()
    v, mean = gibbs(*tensors, STREAM, SWEEPS)
    assert not v.requires_grad
    assert not mean.requires_grad
    assert torch.equal(tensors[0], before)
    start, _ = gibbs(*tensors, STREAM, 0)
    assert torch.equal(start, before)

    def loss(W):
        return gibbs(tensors[0].detach(), W, *(t.detach() for t in tensors[2:]), STREAM, 1)[0].sum() + W.sum()

    assert torch.equal(torch.func.grad(loss)(tensors[1].detach()), torch.ones(5, 4, dtype=torch.float64))


def test_the_law_is_that_of_the_model() -> None:
    """Long chains of a two-unit model have the mean and variance of enumeration."""
    D, H = 1, 1
    W, b, c, log_sigma = (torch.tensor(x, dtype=torch.float64) for x in ([[1.2]], [0.3], [-0.4], [0.2]))
    sigma2 = float((2 * log_sigma).exp())
    # p(h) ~ exp(c h + b W h + sigma^2 W^2 h / 2), v | h normal.
    odds = float(torch.exp(c + b * W[:, 0] + 0.5 * sigma2 * W[:, 0] ** 2))
    p1 = odds / (1 + odds)
    expected_mean = 0.3 + sigma2 * 1.2 * p1
    expected_variance = sigma2 + (sigma2 * 1.2) ** 2 * p1 * (1 - p1)
    v, _ = gibbs(torch.zeros(20_000, D, dtype=torch.float64), W, b, c, log_sigma, Stream(Key(1, 0), 1, 2), 30)
    assert H == 1
    assert abs(float(v.mean()) - expected_mean) < 5 * (expected_variance / 20_000) ** 0.5
    assert abs(float(v.var()) / expected_variance - 1) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({1: torch.zeros(4)}, r"W of shape \(4,\)"),
        ({0: torch.zeros(5)}, r"v of shape \(5,\)"),
        ({0: torch.zeros(7, 4)}, r"v of shape \(7, 4\); expected \(7, 5\)"),
        ({2: torch.zeros(4)}, r"b of shape \(4,\); expected \(5,\)"),
        ({3: torch.zeros(4).double()}, r"c of dtype torch\.float64; expected that of W, torch\.float32"),
        ({4: torch.zeros(5, device="meta")}, "log_sigma of device meta"),
        ({5: [(torch.zeros(7, 3), torch.zeros(7, 5))]}, r"noise\[0\]\[0\] of shape \(7, 3\)"),
        ({5: STREAM}, "sweeps=None with a Stream"),
        ({5: Stream(Key(torch.tensor([1, 2]), 0), 1, 2), 6: 1}, r"shape \(2,\); expected int64 of shape \(\)"),
        ({6: 3}, "sweeps=3 and 1 pairs"),
    ],
)
def test_errors_say_what_was_got(change, message) -> None:
    arguments = [*inputs((7, 5, 4), torch.float32), [(torch.zeros(7, 4), torch.zeros(7, 5))], None]
    for place, value in change.items():
        arguments[place] = value
    with pytest.raises(ValueError, match=message):
        gibbs(*arguments)


@needs_native
def test_native_op_checks_its_arguments() -> None:
    tensors = inputs((7, 5, 4))
    for place, value, message in (
        (0, torch.zeros(7, 4).double(), "v of shape"),
        (2, torch.zeros(5), "b of dtype"),
        (5, [torch.zeros(7, 4).double()], "1 and 0 tensors of noise"),
        (7, torch.tensor([1]), "seeds of dtype"),
        (12, -1, "sweeps=-1"),
    ):
        arguments = list(raw(tensors, STREAM))
        arguments[place] = value
        with pytest.raises(ValueError, match=message):
            torch.ops.eblvm.gibbs(*arguments)
