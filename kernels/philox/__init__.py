"""Counter-based noise: the one source of randomness of the engine.

Every number is a pure function of (seed, step, purpose, global sample index, position in the sample), by Philox 4x32-10
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). So results depend neither on how a batch is
split, nor on the world size, the backend or a resume. README.md has the derivations and the measured accuracy.
"""

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from eblvm.kernels.philox import reference
from eblvm.kernels.philox.one_launch import CURRENT, together
from eblvm.kernels.philox.reference import Kind
from eblvm.kernels.runtime.dispatch import TRITON, Backend, native_status, op_backends, triton_module

__all__ = [
    "Key",
    "Purpose",
    "backends",
    "bernoulli",
    "gumbel",
    "logistic",
    "normal",
    "permutation",
    "purpose",
    "rademacher",
    "streams",
    "together",
    "uniform",
    "words",
]

_NATIVE, _ = native_status("philox")
_STREAMS, _ = native_status("philox_streams")


class Purpose(IntEnum):
    """The use of a stream of noise. The integers are part of every published result: append, never renumber."""

    INIT_THETA = 1
    INIT_PHI = 2
    DATA = 3
    ORDER = 4
    PERTURB = 5
    LATENT = 6
    LEVEL = 7
    DIRECTION = 8
    CHAIN_V = 9
    CHAIN_H = 10
    CONTRAST = 11
    AIS_V = 12
    AIS_H = 13
    SAMPLE_V = 14
    SAMPLE_H = 15
    EVAL = 16
    LANGEVIN = 17
    LATENT_SAMPLE = 20
    LATENT_CHAIN = 21


class Key(NamedTuple):
    """The stream of one training step: `seed` in [0, 2**63), or an int64 tensor of them (replica axes); `step` < 2**32.

    The values of a tensor of seeds are not checked, since that would wait for the device.
    """

    seed: int | Tensor
    step: int


def purpose(kind: Purpose, substep: int = 0) -> int:
    """The third counter word: kind * 2**16 + substep, so that each substep of a loop has its own stream."""
    if not 0 <= substep < 2**16:
        raise ValueError(
            f"substep={substep} is outside [0, 65536); put the rest of a longer loop's index into Key.step"
        )
    return int(kind) << 16 | substep


class Place(TypedDict, total=False):
    """`first`, the global index of the first sample (0), and the `device` of the result (cpu)."""

    first: int
    device: torch.device | str


class Options(Place, total=False):
    """Of every distribution: those of `Place`, and the `dtype` of the result (float32)."""

    dtype: torch.dtype


def _draw(
    kind: Kind,
    key: Key,
    purpose: int,
    count: int,
    shape: tuple[int, ...],
    *,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    seed, target = key.seed, torch.device(device)
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64:
            raise ValueError(f"Key.seed is a tensor of dtype {seed.dtype}; expected torch.int64, use seed.long()")
        if seed.device != target:
            seed = seed.to(target)
    else:
        if not 0 <= seed < 2**63:
            raise ValueError(f"Key.seed={seed} is outside [0, 2**63); use a non-negative 63-bit integer")
        seed = torch.tensor(seed, dtype=torch.int64, device=target)
    width = math.prod(shape)
    if not 0 <= key.step < 2**32:
        raise ValueError(f"Key.step={key.step} is outside [0, 2**32); steps count from 0")
    if not 0 <= purpose < 2**32:
        raise ValueError(f"purpose={purpose} is outside [0, 2**32); make it with philox.purpose(Purpose.X, substep)")
    if count < 0 or any(size < 0 for size in shape):
        raise ValueError(f"count={count}, shape={tuple(shape)}: expected sizes of at least 0")
    if first < 0 or first + count > 2**32:
        raise ValueError(
            f"samples {first}..{first + count - 1} leave [0, 2**32); expected global sample indices in that range"
        )
    if width > 2**34:
        raise ValueError(
            f"shape={tuple(shape)} is {width} words per sample; expected at most 2**34, split it into more samples"
        )

    block = getattr(CURRENT, "block", None)
    if block is not None and target.type == "cuda" and block.gathers(kind, seed, dtype):
        return block.add(int(kind), seed, key.step, purpose, count, width, first).view(*seed.shape, count, *shape)
    # Plans read shapes only, and the reference would spend seconds on those of its intermediates.
    if target.type == "meta":
        return torch.empty(*seed.shape, count, *shape, dtype=dtype, device=target)
    noise: Tensor = _backend(seed.device)(seed, key.step, purpose, count, width, first, int(kind))
    # Most of the time of a small draw would be these two.
    if len(shape) != 1:
        noise = noise.reshape(*seed.shape, count, *shape)
    return noise if noise.dtype == dtype else noise.to(dtype)


def _backend(device: torch.device) -> Any:
    if _NATIVE and device.type == "cpu":
        return torch.ops.eblvm.philox
    if TRITON and device.type == "cuda" and not torch.compiler.is_compiling():
        return _Triton.apply
    return reference.philox


class _Triton(torch.autograd.Function):
    """The Triton launch with a rule for `vmap`; it has no derivative."""

    @staticmethod
    def forward(seed: Tensor, *rest: int) -> Tensor:
        return triton_module("philox", seed.device).philox(seed, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], seed: Tensor, *rest: int) -> tuple[Tensor, int]:
        return _Triton.apply(seed.movedim(in_dims[0] or 0, 0), *rest), 0


def _vmap_native(info: Any, in_dims: tuple[int | None, ...], seed: Tensor, *rest: int) -> tuple[Tensor, int]:
    # A replica axis is only one more leading axis of the seeds.
    return torch.ops.eblvm.philox(seed.movedim(in_dims[0] or 0, 0), *rest), 0


if _NATIVE:
    torch.library.register_vmap("eblvm::philox", _vmap_native)


def words(key: Key, purpose: int, count: int, shape: tuple[int, ...] = (), **place: Unpack[Place]) -> Tensor:
    """The raw 32-bit words as int64, [*seed.shape, count, *shape]: word j of sample i is word j%4 of block j//4."""
    return _draw(Kind.WORDS, key, purpose, count, shape, dtype=torch.int64, **place)


def uniform(key: Key, purpose: int, count: int, shape: tuple[int, ...] = (), **options: Unpack[Options]) -> Tensor:
    """u = (r >> 8) 2^-24 in [0, 1), [*seed.shape, count, *shape], for the samples first .. first+count-1."""
    return _draw(Kind.UNIFORM, key, purpose, count, shape, **options)


def normal(key: Key, purpose: int, count: int, shape: tuple[int, ...] = (), **options: Unpack[Options]) -> Tensor:
    """Standard normal z = sign sqrt(2) erfinv(1 - p), [*seed.shape, count, *shape], |z| up to 6.3."""
    return _draw(Kind.NORMAL, key, purpose, count, shape, **options)


def logistic(key: Key, purpose: int, count: int, shape: tuple[int, ...] = (), **options: Unpack[Options]) -> Tensor:
    """Standard logistic sign log((2 - p) / p), [*seed.shape, count, *shape]: the difference of two Gumbels."""
    return _draw(Kind.LOGISTIC, key, purpose, count, shape, **options)


def gumbel(key: Key, purpose: int, count: int, shape: tuple[int, ...] = (), **options: Unpack[Options]) -> Tensor:
    """Standard Gumbel -log(-log u) with u strictly inside (0, 1), [*seed.shape, count, *shape]."""
    return _draw(Kind.GUMBEL, key, purpose, count, shape, **options)


def rademacher(key: Key, purpose: int, count: int, shape: tuple[int, ...] = (), **options: Unpack[Options]) -> Tensor:
    """+1 or -1 with equal odds, [*seed.shape, count, *shape]."""
    return _draw(Kind.RADEMACHER, key, purpose, count, shape, **options)


def streams(
    draw: Callable[..., Tensor],
    number: int,
    key: Key,
    purpose: int,
    count: int,
    shape: tuple[int, ...] = (),
    **options: Unpack[Options],
) -> list[Tensor]:
    """`draw(key, purpose + i, ...)` for i < number, a function of this module; natively all in one call."""
    kind, seed, dtype = KINDS[draw], torch.as_tensor(key.seed), options.get("dtype", torch.float32)
    on_cpu = torch.device(options.get("device", "cpu")).type == seed.device.type == "cpu"
    if not (_STREAMS and on_cpu and seed.dtype == torch.int64) or number < 2:
        return [draw(key, purpose + i, count, shape, **options) for i in range(number)]
    first, width = options.get("first", 0), math.prod(shape)
    drawn = torch.ops.eblvm.philox_streams(seed, key.step, purpose, number, count, width, first, int(kind))
    if len(shape) != 1:
        drawn = [noise.view(*seed.shape, count, *shape) for noise in drawn]
    return drawn if dtype == torch.float32 else [noise.to(dtype) for noise in drawn]


KINDS = {
    uniform: Kind.UNIFORM,
    normal: Kind.NORMAL,
    logistic: Kind.LOGISTIC,
    gumbel: Kind.GUMBEL,
    rademacher: Kind.RADEMACHER,
}


def bernoulli(key: Key, purpose: int, p: Tensor, *, first: int = 0) -> Tensor:
    """1[u < p] with u uniform, for p [*seed.shape, count, *shape]; dtype and device of p, no gradient."""
    if not p.is_floating_point():
        raise ValueError(f"bernoulli got p of dtype {p.dtype}; expected probabilities of a floating dtype")
    replicas = key.seed.dim() if isinstance(key.seed, Tensor) else 0
    if p.dim() <= replicas:
        raise ValueError(f"bernoulli got p of shape {tuple(p.shape)}; expected [*seed.shape, count, *shape]")
    u = uniform(key, purpose, p.shape[replicas], tuple(p.shape[replicas + 1 :]), first=first, device=p.device)
    return (u < p).to(p.dtype)


def permutation(key: Key, purpose: int, n: int, *, device: torch.device | str = "cpu") -> Tensor:
    """A random order of 0..n-1, int64 [*seed.shape, n]: the stable argsort of n 63-bit keys."""
    if n < 0:
        raise ValueError(f"permutation got n={n}; expected n >= 0")
    pairs = words(key, purpose, 1, (n, 2), device=device).squeeze(-3)
    return torch.argsort(pairs[..., 0] << 31 | pairs[..., 1] >> 1, dim=-1, stable=True)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("philox")
