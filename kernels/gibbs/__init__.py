"""Block Gibbs sweeps of a GRBM, with the noise drawn in the kernel: CD and PCD training, and the long sampler.

h = 1[u < sigmoid(v W + c)],   mean = b + sigma^2 (h W^T),   v' = mean + sigma n
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from eblvm.kernels.gibbs import reference
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime.arguments import expect_grbm
from eblvm.kernels.runtime.dispatch import TRITON, Backend, native_status, op_backends, triton_module

__all__ = ["Noise", "Stream", "backends", "gibbs"]

_NATIVE, _ = native_status("gibbs")


class Stream(NamedTuple):
    """Noise that the sweeps draw themselves: sweep i has `philox.uniform(Key(seed, step + i), purpose_h, B, (H,))` and
    `philox.normal(Key(seed, step + i), purpose_v, B, (D,))`. A tensor of seeds has the leading axes of v."""

    key: Key
    purpose_h: int
    purpose_v: int
    first: int = 0


Noise = Stream | Sequence[tuple[Tensor, Tensor]]


def _op_flops(v: Tensor, W: Tensor, *rest: Any, **_: Any) -> int:
    """Of the two matrix products of a sweep."""
    return 4 * v.shape[-2] * W.numel() * int(rest[-1])


if _NATIVE:
    register_flop_formula(torch.ops.eblvm.gibbs, get_raw=True)(_op_flops)


def _backend(v: Tensor) -> Any:
    if torch.compiler.is_compiling():
        return reference.gibbs
    if _NATIVE and v.device.type == "cpu" and v.dtype in (torch.float32, torch.float64):
        return torch.ops.eblvm.gibbs
    # Kernels cannot be launched on the wrapped tensors of a torch.func transform; the reference can.
    if TRITON and v.device.type == "cuda" and torch._C._functorch.maybe_current_level() is None:
        return triton_module("gibbs", v.device).gibbs
    return reference.gibbs


def gibbs(
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    noise: Noise,
    sweeps: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(v, mean of the last p(v|h)) [..., B, D] after the sweeps; W [..., D, H], b and log_sigma [..., D], c [..., H].

    `noise` is one (uniform [..., B, H], normal [..., B, D]) per sweep, or a `Stream`, which needs `sweeps`.
    Samples carry no gradient. Leading axes are replicas.
    """
    lead = tuple(W.shape[:-2])
    more: dict[str, tuple[Tensor, tuple[str, ...]]] = {}
    uniforms: list[Tensor] = []
    normals: list[Tensor] = []
    seed, step, purpose_h, purpose_v, first = None, 0, 0, 0, 0
    if isinstance(noise, Stream):
        if sweeps is None or sweeps < 0:
            raise ValueError(f"gibbs got sweeps={sweeps} with a Stream; expected the number of sweeps to draw")
        seed = torch.as_tensor(noise.key.seed).to(v.device)
        step, purpose_h, purpose_v, first = noise.key.step, noise.purpose_h, noise.purpose_v, noise.first
        if seed.dtype != torch.int64 or tuple(seed.shape) != lead:
            raise ValueError(
                f"gibbs got seeds of dtype {seed.dtype} and shape {tuple(seed.shape)}; expected int64 of shape {lead}"
            )
    else:
        uniforms, normals = [u for u, _ in noise], [n for _, n in noise]
        more |= {f"noise[{i}][0]": (u, ("B", "H")) for i, u in enumerate(uniforms)}
        more |= {f"noise[{i}][1]": (n, ("B", "D")) for i, n in enumerate(normals)}
        if sweeps is not None and sweeps != len(uniforms):
            raise ValueError(f"gibbs got sweeps={sweeps} and {len(uniforms)} pairs of noise; expected as many")
        sweeps = len(uniforms)
    expect_grbm("gibbs", v, W, b, c, log_sigma, more)
    arguments = (v, W, b, c, log_sigma, uniforms, normals, seed, step, purpose_h, purpose_v, first, sweeps)
    with torch.no_grad():
        return _backend(v)(*arguments)


def backends() -> list[Backend]:
    """The backends of this op: which is used on which device, and why not the others."""
    return op_backends("gibbs")
