"""The closed forms against brute force, and the theorems' rate."""

import math

import pytest
import torch

from eblvm.engine.evaluation.studies import posterior_bias
from eblvm.engine.evaluation.studies.posterior_bias import gaussian_bias, grbm_bias
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

V = philox.uniform(Key(1, 0), 0, 5, dtype=torch.float64)


def test_grbm_bias_is_that_of_the_definition() -> None:
    """Expectations by all 2^H states of h, Jacobians by autograd."""
    H, level = 3, 0.7
    W, A, a, x = posterior_bias._random_layers(V, H, 0)
    c = (x - V @ W).requires_grad_()
    W = W.requires_grad_()
    states = torch.tensor([[i >> j & 1 for j in range(H)] for i in range(2**H)], dtype=torch.float64)

    def moments(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weight = torch.exp((states * logits - torch.nn.functional.softplus(logits)).sum(1))
        mean, jacobian, scores, grads = 0.0, 0.0, [], []
        for w, h in zip(weight, states, strict=True):
            v = V.clone().requires_grad_()
            log_p = -0.5 * v.square().sum() + h @ c + v @ W @ h
            (s,) = torch.autograd.grad(log_p, v, create_graph=True)
            rows = [
                torch.cat(
                    [g.flatten() for g in torch.autograd.grad(s_d, (W, c), retain_graph=True, materialize_grads=True)]
                )
                for s_d in s
            ]
            g = torch.cat([g.flatten() for g in torch.autograd.grad(log_p, (W, c))])
            mean, jacobian = mean + w * s.detach(), jacobian + w * torch.stack(rows)
            scores.append(s.detach())
            grads.append(g)
        s, g = torch.stack(scores), torch.stack(grads)
        centred_s, centred_g = s - weight @ s, g - weight @ g
        return mean, jacobian + torch.einsum("i,id,ip->dp", weight, centred_s, centred_g), weight

    with torch.no_grad():
        logits = x + level * (V @ A + a)
    at_q, at_p = moments(logits), moments(x.detach())
    (point,) = grbm_bias(V, H, [level])
    assert point.vaes == pytest.approx(float((at_q[0] - at_p[0]).norm()), rel=1e-10)
    assert point.vages == pytest.approx(float((at_q[1] - at_p[1]).norm()), rel=1e-10)
    assert point.divergence == pytest.approx(float((at_q[2] * (at_q[2] / at_p[2]).log()).sum()), rel=1e-10)


def test_gaussian_bias_is_that_of_the_definition() -> None:
    """Expectations by many samples, Jacobians by autograd for each."""
    H, level, count = 2, 0.5, 100_000
    W, A, a, _ = posterior_bias._random_layers(V, H, 0)
    W = torch.linalg.qr(W).Q
    mu = V @ W / 2
    generator = torch.Generator().manual_seed(0)

    def jacobian(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        z = torch.randn(count // 2, H, generator=generator, dtype=torch.float64)
        h = mean + variance.sqrt() * torch.cat([z, -z])
        r = V - h @ W.T
        s, g = -r, torch.einsum("nd,nh->ndh", r, h).flatten(1)
        direct = torch.einsum("de,h->deh", torch.eye(5, dtype=torch.float64), h.mean(0)).flatten(1)
        return direct + (s - s.mean(0)).T @ (g - g.mean(0)) / count

    at_q = jacobian(mu + level * (V @ A), 0.5 * torch.exp(level * a))
    at_p = jacobian(mu, torch.full((H,), 0.5, dtype=torch.float64))
    (point,) = gaussian_bias(V, H, [level])
    assert point.vages == pytest.approx(float((at_q - at_p).norm()), rel=0.02)
    assert point.vaes == pytest.approx(float((level * (V @ A)).norm()), rel=1e-10)


@pytest.mark.parametrize("bias", [grbm_bias, gaussian_bias])
def test_bias_falls_with_the_root_of_the_divergence(bias) -> None:
    """Slope one half in the log-log plot as q tends to p, and a bounded ratio to the root on the way."""
    v = philox.uniform(Key(2, 0), 0, 40, dtype=torch.float64)
    points = bias(v, 20, [2.0**-i for i in range(3, 13)])
    for name in ("vaes", "vages"):
        values = [getattr(p, name) for p in points]
        slope = math.log(values[-2] / values[-1]) / math.log(points[-2].divergence / points[-1].divergence)
        assert abs(slope - 0.5) < 0.01
        ratios = [value / math.sqrt(p.divergence) for value, p in zip(values, points, strict=True)]
        assert max(ratios) < 4 * ratios[-1]
    assert bias(v, 20, [0.0])[0] == pytest.approx((0, 0, 0), abs=1e-12)
