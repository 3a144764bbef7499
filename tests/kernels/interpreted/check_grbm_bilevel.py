"""The Triton bi-level step against the reference."""

from itertools import product

import pytest
import torch

from eblvm.kernels.adam_unroll import Rule
from eblvm.kernels.grbm_bilevel import Phi, Settings, Theta, reference, triton, triton_rate
from eblvm.kernels.grbm_bilevel.triton_lower import lower_kernel
from eblvm.kernels.runtime.pointers import stacked

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
SIGMA, TAU = 0.3, 0.4
MODES = [dict(zip(("exact", "sgd", "shared"), mode, strict=True)) for mode in product((False, True), repeat=3)]


def inputs(size, steps, *, exact=False, shared=False, replicas=(), dtype=torch.float64):
    B, D, H = size
    generator = torch.Generator().manual_seed(B + D + H + steps)

    def normal(*shape):
        return torch.randn(*replicas, *shape, generator=generator, dtype=torch.float64).to(dtype)

    def full(value):
        return torch.full(replicas, value, dtype=dtype)

    theta = Theta(normal(D, H) / D**0.5, normal(D), normal(H), 0.2 * normal(D))
    moments = (0.1 * normal(H, D), 0.1 * normal(H), normal(H, D).square(), normal(H).square())
    phi = Phi(normal(H, D) / D**0.5, normal(H), *moments, full(4.0))
    perturb = [normal(B, D) for _ in range(1 if shared else steps)]
    latent = [normal(B, H) for _ in range(1 if exact else steps)]
    return normal(B, D), perturb, latent, theta, phi, full(0.02), full(0.3)


def assert_close(got, expected, tolerance) -> None:
    for name in ("gradient", "phi", "loss", "lower"):
        theirs, ours = getattr(expected, name), getattr(got, name)
        pairs = [(ours, theirs)] if isinstance(theirs, torch.Tensor) else zip(ours, theirs, strict=True)
        for g, e in pairs:
            assert g.shape == e.shape
            torch.testing.assert_close(g, e, rtol=tolerance, atol=tolerance * max(float(e.abs().max()), 1.0))


def check(size, K, N, *, exact, sgd, shared, auto_rate=False, replicas=(), dtype=torch.float64) -> None:
    given = inputs(size, K + N + 1, exact=exact, shared=shared, replicas=replicas, dtype=dtype)
    settings = Settings(K=K, N=N, sigma=SIGMA, tau=TAU, exact=exact, sgd=sgd, auto_rate=auto_rate, rule=Rule())
    got = triton.grbm_bilevel(*given, settings)
    assert_close(got, reference.grbm_bilevel(*given, settings), TOLERANCE[dtype])


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_step(mode, nan_filled) -> None:
    check((5, 3, 4), 1, 2, **mode)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [(1, 1, 1), (63, 2, 3), (2, 100, 3), (2, 3, 40), (2, 257, 2)], ids=str)
def test_odd_sizes(size, dtype, nan_filled) -> None:
    check(size, 1, 1, exact=False, sgd=False, shared=False, dtype=dtype)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("size", [(1, 1, 1), (35, 18, 3), (20, 63, 20)], ids=str)
def test_dual(size, exact, nan_filled) -> None:
    check(size, 1, 3, exact=exact, sgd=True, shared=True)


@pytest.mark.parametrize(("K", "N"), [(0, 0), (2, 0), (0, 2)])
def test_without_real_or_unrolled_steps(K, N, nan_filled) -> None:
    check((5, 3, 4), K, N, exact=False, sgd=False, shared=True)


def test_replicas_and_the_automatic_step_size(nan_filled) -> None:
    check((5, 3, 20), 1, 2, exact=True, sgd=True, shared=True, auto_rate=True, replicas=(2,))
    check((5, 3, 4), 1, 2, exact=False, sgd=False, shared=False, replicas=(3,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("B", "D"), [(1, 1), (5, 63), (63, 5)])
def test_automatic_step_size(B, D, dtype, nan_filled) -> None:
    V = torch.randn(2, B, D, generator=torch.Generator().manual_seed(B), dtype=torch.float64).to(dtype)
    got = triton_rate.step_size(triton.gram_of(V, torch.zeros_like(V), 1.0))
    torch.testing.assert_close(got, reference.step_size(V), rtol=TOLERANCE[dtype], atol=0)


def test_automatic_step_size_of_a_large_batch(nan_filled, monkeypatch) -> None:
    monkeypatch.setattr(triton_rate, "LARGEST", 4)
    check((5, 3, 4), 0, 1, exact=True, sgd=True, shared=True, auto_rate=True)


@pytest.mark.parametrize("exact", [True, False])
def test_lower_steps_alone(exact, nan_filled) -> None:
    v, perturb, latent, theta, phi, phi_rate, _ = inputs((5, 3, 4), 2)
    given = (v, perturb, [] if exact else latent, theta, phi, phi_rate)
    settings = Settings(K=2, sigma=SIGMA, tau=TAU, exact=exact, rule=Rule())
    got, expected = triton.lower_steps(*given, settings), reference.lower_steps(*given, settings)
    torch.testing.assert_close((*got[0], got[1]), (*expected[0], expected[1]), rtol=1e-10, atol=1e-10)


def test_tensors_that_the_settings_leave_out_are_empty() -> None:
    v, perturb, _, theta, phi, phi_rate, _ = inputs((5, 3, 4), 2)
    settings = Settings(K=2, sigma=SIGMA, tau=TAU, exact=True, rule=Rule())
    step = triton._step(v, perturb, [], theta, phi, phi_rate, phi_rate, settings, upper=False)
    empty = {name for name, tensor in step.tensors.items() if tensor.numel() == 0}
    of_upper = {"r", "gap", "z_bar", "A_bar", "G_bar", "m_bar", "v_bar"}
    assert empty == {"noise", "z", "G", "m", "v2", "M", "S"} | of_upper


def test_a_tensor_that_a_kernel_names_and_the_step_lacks_is_an_error() -> None:
    v, perturb, latent, theta, phi, phi_rate, _ = inputs((5, 3, 4), 2)
    settings = Settings(K=2, sigma=SIGMA, tau=TAU, exact=False, rule=Rule())
    step = triton._step(v, perturb, latent, theta, phi, phi_rate, phi_rate, settings, upper=False)
    del step.tensors["delta"]
    with pytest.raises(KeyError, match="delta"):
        step.launch(lower_kernel, (2, 1))


def test_noise_that_lies_together_is_not_copied() -> None:
    whole = torch.randn(3, 2, 4)
    assert stacked(list(whole)).data_ptr() == whole.data_ptr()
    apart = [whole[0], whole[2], whole[1]]
    assert torch.equal(stacked(apart), torch.stack(apart))
