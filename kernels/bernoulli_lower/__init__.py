"""The pointwise part of the lower step: KL(q || p) of a Bernoulli posterior for an energy that is linear in h.

    kl = sum_H h (l - x) - softplus(l)   [..., B],   h = sigmoid((l + logistic noise) / tau), or the mean sigmoid(l)

with logits l [..., B, H] of q and the energy's coefficient x [..., B, H] (a GRBM's c + vW). Its first derivative is the
lower step's delta, its second the reverse of an unrolled step. README.md derives both.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.kernels import philox
from eblvm.kernels.bernoulli_lower import reference
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime.dispatch import Backend, backend_for, native_status, op_backends
from eblvm.kernels.runtime.orders import by_reference, order

__all__ = ["Reference", "Stream", "backend", "backends", "bernoulli_lower"]

_NATIVE, _ = native_status("bernoulli_lower")


class Stream(NamedTuple):
    """Noise that the kernel draws itself and draws again in backward: `philox.logistic(key, purpose, B, (H,), first=)`.

    A tensor of seeds has the leading axes of the logits.
    """

    key: Key
    purpose: int
    first: int = 0


def _same(name: str, t: Tensor, logits: Tensor) -> None:
    for what in ("shape", "dtype", "device"):
        got, expected = getattr(t, what), getattr(logits, what)
        if got != expected:
            got, expected = (tuple(s) if what == "shape" else s for s in (got, expected))
            raise ValueError(f"bernoulli_lower got {name} of {what} {got}; expected that of logits, {expected}")


class Reference:
    """`reference.py` behind the signature of the backends, with the noise drawn."""

    @staticmethod
    def value(logits: Tensor, x: Tensor, *noise_tau: Any) -> Tensor:
        return reference.value(logits, x, *_drawn(logits, *noise_tau))

    @staticmethod
    def first(g: Tensor, logits: Tensor, x: Tensor, *noise_tau: Any) -> tuple[Tensor, Tensor]:
        return reference.first(g, logits, x, *_drawn(logits, *noise_tau))

    @staticmethod
    def second(g: Tensor, u: Tensor, w: Tensor, logits: Tensor, x: Tensor, *noise_tau: Any) -> tuple[Tensor, ...]:
        return reference.second(g, u, w, logits, x, *_drawn(logits, *noise_tau))


def _drawn(
    logits: Tensor, noise: Tensor | None, seed: Tensor | None, step: int, purpose: int, first: int, tau: float
) -> tuple[Tensor | None, float]:
    if seed is not None:
        batch, width = logits.shape[-2:]
        kwargs: dict[str, Any] = {"first": first, "dtype": logits.dtype, "device": logits.device}
        noise = philox.logistic(Key(seed, step), purpose, batch, (width,), **kwargs)
    return noise, tau


class _Native:
    value = staticmethod(torch.ops.eblvm.bernoulli_lower) if _NATIVE else None
    first = staticmethod(torch.ops.eblvm.bernoulli_lower_first) if _NATIVE else None
    second = staticmethod(torch.ops.eblvm.bernoulli_lower_second) if _NATIVE else None


def _pull_value(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    return *_first(backend, *cotangents, *arguments), *[None] * 6


def _pull_first(backend: Any, arguments: Any, kept: Any, cotangents: Any, wanted: Any) -> tuple[Any, ...]:
    g, *rest = arguments
    return *_second(backend, g, *cotangents, *rest), *[None] * 6


_value = order("value", _pull_value)
_first = order("first", _pull_first)
_second = order("second", by_reference(Reference.second))


def bernoulli_lower(logits: Tensor, x: Tensor, noise: Tensor | Stream | None, tau: float = 1.0) -> Tensor:
    """kl [..., B] of logits and x [..., B, H], differentiable in both, to any order.

    `noise` is a tensor like the logits (which gets no gradient), a `Stream`, or None for the KL in closed form, where
    tau is not used.
    """
    if logits.dim() < 2:
        raise ValueError(f"bernoulli_lower got logits of shape {tuple(logits.shape)}; expected [..., B, H]")
    if not logits.is_floating_point():
        raise ValueError(f"bernoulli_lower got logits of dtype {logits.dtype}; expected a floating dtype")
    _same("x", x, logits)
    if noise is not None and not tau > 0:
        raise ValueError(f"bernoulli_lower got tau={tau}; expected a positive temperature")
    given, seed, step, purpose, first = None, None, 0, 0, 0
    if isinstance(noise, Stream):
        seed, step, purpose, first = torch.as_tensor(noise.key.seed), noise.key.step, noise.purpose, noise.first
        seed = seed.to(logits.device)
        if seed.dtype != torch.int64:
            raise ValueError(f"bernoulli_lower got Key.seed of dtype {seed.dtype}; expected torch.int64")
        if seed.shape != logits.shape[:-2]:
            raise ValueError(
                f"bernoulli_lower got seeds of shape {tuple(seed.shape)}; "
                f"expected the leading axes of logits {tuple(logits.shape)}"
            )
    elif noise is not None:
        _same("noise", noise, logits)
        if noise.requires_grad:
            raise ValueError("bernoulli_lower got noise that requires grad, and has no derivative for it; detach it")
        given = noise
    return _value(backend(logits), logits, x, given, seed, step, purpose, first, tau)


def backend(logits: Tensor) -> Any:
    """The backend for logits: a function for every order, with the signatures of the reference."""
    return backend_for("bernoulli_lower", logits, Reference, _Native if _NATIVE else None)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("bernoulli_lower")
