"""Inputs for the lower step's kernels, and the reference's results; for the native and the Triton tests."""

import torch
from torch import Tensor

from eblvm.kernels import bernoulli_lower, philox
from eblvm.kernels.bernoulli_lower import Stream
from eblvm.kernels.philox import Key, Purpose

SIZES = [(1, 1), (63, 3), (3, 100), (2, 257), (0, 4), (3, 0)]
NOISES = ["given", "drawn", "exact"]
TAU = 0.3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}
PURPOSE = philox.purpose(Purpose.LATENT, 2)


def inputs(size: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """logits and x over many scales, both signs and the tails."""
    generator = torch.Generator().manual_seed(sum(size))
    logits, x = (4 * torch.randn(size, generator=generator, dtype=torch.float64) for _ in range(2))
    if logits.numel() > 8:
        logits.view(-1)[:4] = torch.tensor([-60.0, 60.0, 0.0, 40.0], dtype=torch.float64)
    return logits.to(dtype), x.to(dtype)


def noise_of(kind: str, logits: Tensor) -> Tensor | Stream | None:
    if kind == "exact":
        return None
    replicas = logits.shape[:-2]
    key = Key(torch.arange(replicas.numel()).view(replicas) + 2**40 if replicas else 2**40, 3)
    if kind == "drawn":
        return Stream(key, PURPOSE, 11)
    return philox.logistic(key, PURPOSE, logits.shape[-2], (logits.shape[-1],), first=11, dtype=logits.dtype)


def derivatives(backend: object, logits: Tensor, x: Tensor, noise: Tensor | Stream | None) -> list[Tensor]:
    """kl, its gradient, and the gradient of a function of that gradient, by autograd through `backend`."""
    given, seed, step, purpose, first = None, None, 0, 0, 0
    if isinstance(noise, Stream):
        seed, step, purpose, first = torch.as_tensor(noise.key.seed), noise.key.step, noise.purpose, noise.first
    else:
        given = noise
    logits, x = logits.detach().requires_grad_(), x.detach().requires_grad_()
    weight = torch.linspace(0.5, 1.5, max(logits.shape[:-1].numel(), 1), dtype=logits.dtype)
    weight = weight[: logits.shape[:-1].numel()].view(logits.shape[:-1]).requires_grad_()
    kl = bernoulli_lower._value(backend, logits, x, given, seed, step, purpose, first, TAU)
    gl, gx = torch.autograd.grad((kl * weight).sum(), (logits, x), create_graph=True)
    second = torch.autograd.grad((gl.sin() + gx.cos() * 2).sum(), (weight, logits, x))
    return [kl.detach(), gl.detach(), gx.detach(), *second]


def by_autograd(logits: Tensor, x: Tensor, noise: Tensor | Stream | None) -> list[Tensor]:
    """The same from the value alone: torch differentiates the reference's definition."""

    def plain(backend, logits, x, given, seed, step, purpose, first, tau):
        drawn, tau = bernoulli_lower._drawn(logits, given, seed, step, purpose, first, tau)
        return bernoulli_lower.reference.value(logits, x, drawn, tau)

    kept, bernoulli_lower._value = bernoulli_lower._value, plain
    try:
        return derivatives(None, logits, x, noise)
    finally:
        bernoulli_lower._value = kept
