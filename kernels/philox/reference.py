"""The specification of the noise, in torch ops that round once each: any backend must give the same bits.

Only +, -, *, /, sqrt, integer ops and conversions are used, in a fixed order, and no library logarithm, since these
differ between platforms. Each op rounds the coefficients, Python floats, to float32.
"""

from enum import IntEnum

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)

# Polynomials, lowest power first.
# log(1+f) = f - f^2/2 + f^3 P(f) on [sqrt(1/2)-1, sqrt(2)-1]: Cephes logf.
LOG = (
    3.3333331174e-1,
    -2.4999993993e-1,
    2.0000714765e-1,
    -1.6668057665e-1,
    1.4249322787e-1,
    -1.2420140846e-1,
    1.1676998740e-1,
    -1.1514610310e-1,
    7.0376836292e-2,
)
# log 2 = 0.693359375 - 2.12194440e-4, the first with 9 bits, so that its product with an exponent is exact.
LOG2_HIGH, LOG2_LOW = 0.693359375, -2.12194440e-4

# erfinv(x)/x in w - 2.5 for w < 5: Giles 2010, "Approximating the erfinv function".
ERFINV_CENTRE = (
    1.50140941,
    0.246640727,
    -0.00417768164,
    -0.00125372503,
    0.00021858087,
    -4.39150654e-06,
    -3.5233877e-06,
    3.43273939e-07,
    2.81022636e-08,
)
# erfinv(x)/x in sqrt(w) - 3 for 5 <= w < 22: refitted, since Giles's ends at w = 16 and is off by 4e-4 at 6 sigma.
ERFINV_TAIL = (
    2.832977056503296,
    1.0016753673553467,
    0.009434619918465614,
    -0.007643571123480797,
    0.00575977610424161,
    -0.0035907127894461155,
    0.0013160713715478778,
    -1.0271419341734145e-05,
    -0.0001800694881239906,
    4.527344572125003e-05,
)
SQRT2 = 1.4142135381698608


class Kind(IntEnum):
    """The distributions; native.cpp has the same integers."""

    WORDS = 0
    UNIFORM = 1
    NORMAL = 2
    LOGISTIC = 3
    GUMBEL = 4
    RADEMACHER = 5


def philox(seed: Tensor, step: int, purpose: int, count: int, width: int, first: int, kind: int) -> Tensor:
    """Noise [*seed.shape, count, width] of the samples first .. first+count-1: int64 words, or float32."""
    block = torch.arange((width + 3) // 4, device=seed.device)
    sample = torch.arange(first, first + count, device=seed.device)
    key = seed[..., None, None]
    out = philox4x32(
        (block, sample[:, None], torch.full_like(block, step), torch.full_like(block, purpose)),
        (key & MASK, key >> 32 & MASK),
    )
    r = torch.stack(out, dim=-1).flatten(-2)[..., :width]
    return transform(r, Kind(kind))


def philox4x32(
    counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds of Philox on int64 tensors of 32-bit words; arguments and results broadcast together."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    c0, c1, c2, c3 = torch.broadcast_tensors(c0, c1, c2, c3)
    return c0, c1, c2, c3


def transform(r: Tensor, kind: Kind) -> Tensor:
    """Words r to the distribution `kind`: the top bit is a sign, p = (r mod 2^31 + 1/2) 2^-31 a tail probability."""
    if kind is Kind.WORDS:
        return r.contiguous()
    if kind is Kind.UNIFORM:
        return (r >> 8).float() * 2.0**-24
    negative = (r >> 31) == 1
    if kind is Kind.RADEMACHER:
        return _signed(torch.ones_like(r, dtype=torch.float32), negative)
    p = ((r & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    if kind is Kind.NORMAL:
        return _signed(_half_normal(p), negative)
    if kind is Kind.LOGISTIC:
        return _signed(log((2.0 - p) / p), negative)
    return _gumbel(p, negative)


def log(x: Tensor) -> Tensor:
    """log x of normal, positive float32: x = 2^e (1+f) with 1+f in [sqrt(1/2), sqrt(2)), log x = e log 2 + log(1+f)."""
    bits = x.view(torch.int32) - 0x3F3504F3  # the bits of sqrt(1/2)
    e = (bits >> 23).float()
    f = ((bits & 0x7FFFFF) + 0x3F3504F3).view(torch.float32) - 1.0
    square = f * f
    y = _polynomial(f, LOG) * f * square
    y = y + e * LOG2_LOW
    y = y - square * 0.5
    return f + y + e * LOG2_HIGH


def _half_normal(p: Tensor) -> Tensor:
    """sqrt(2) erfinv(1-p), with w = -log(1 - (1-p)^2) computed from the tail p to keep its relative precision."""
    w = -log(p * (2.0 - p))
    # Vector maths libraries miss the last bit of a float32 sqrt; one in float64 always rounds to the right one.
    root = torch.sqrt(w.double()).float()
    y = torch.where(w < 5.0, _polynomial(w - 2.5, ERFINV_CENTRE), _polynomial(root - 3.0, ERFINV_TAIL))
    return (1.0 - p) * y * SQRT2


def _gumbel(p: Tensor, negative: Tensor) -> Tensor:
    """-log(-log u) with u = q on the negative side and 1-q on the other, q = p/2."""
    q = p * 0.5
    y = 1.0 - q
    log_u = log(torch.where(negative, q, y))
    # Kahan's log1p: the rounding of 1-q cancels in the ratio; y = 1 means -log(1-q) = q.
    ratio = log_u * q / torch.where(y == 1.0, -1.0, y - 1.0)
    small = torch.where(y == 1.0, q, ratio)
    return -log(torch.where(negative, -log_u, small))


def _polynomial(t: Tensor, c: tuple[float, ...]) -> Tensor:
    """sum_i c_i t^i of degree 8 or 9, in Estrin's order."""
    t2 = t * t
    t4 = t2 * t2
    low = (t * c[1] + c[0]) + (t * c[3] + c[2]) * t2
    middle = (t * c[5] + c[4]) + (t * c[7] + c[6]) * t2
    high = t4 * (t * c[9] + c[8]) if len(c) == 10 else t4 * c[8]
    return low + (middle + high) * t4


def _multiply(a: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """High and low word of the 64-bit product, from two 48-bit products, since int64 has no unsigned multiply."""
    low = a * (m & 0xFFFF)
    high = a * (m >> 16)
    return (high + (low >> 16)) >> 16, (((high & 0xFFFF) << 16) + low) & MASK


def _signed(x: Tensor, negative: Tensor) -> Tensor:
    return torch.where(negative, -x, x)
