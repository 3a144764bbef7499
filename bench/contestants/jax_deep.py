"""MDSM and BiMDSM of the lean deep EBLVM in JAX, as plain as `bench/naive/bimdsm.py`, compiled whole by `jit`.

Images and activations are NHWC and kernels HWIO, as JAX users have them, and lower steps are a `scan`: as a Python loop
they compile for minutes. Parameters are named as in the naive nets.
Shape tags: B batch, H latent units.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from eblvm.bench.contestants.jax_grbm import Moments, Training, Tree, adam


class Settings(NamedTuple):
    """The constants of a compiled step; sigma [B] as a tuple."""

    N: int
    K: int
    blocks: int
    sigma: tuple[float, ...]
    sigma0: float
    lr: float
    betas: tuple[float, float]
    shared: bool
    latent: int


def conv(p: Tree, name: str, x: Array, stride: int = 1, padding: Any = "SAME") -> Array:
    y = jax.lax.conv_general_dilated(
        x, p[f"{name}.weight"], (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + p[f"{name}.bias"]


def linear(p: Tree, name: str, x: Array) -> Array:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def halved(x: Array) -> Array:
    """Means over 2x2 pixels."""
    b, height, width, channels = x.shape
    return x.reshape(b, height // 2, 2, width // 2, 2, channels).mean((2, 4))


def block(p: Tree, name: str, x: Array) -> Array:
    y = conv(p, f"{name}.second", jax.nn.elu(conv(p, f"{name}.first", jax.nn.elu(x))))
    if f"{name}.shortcut.weight" not in p:
        return x + y
    return conv(p, f"{name}.shortcut", halved(x)) + halved(y)


def energy(how: Settings, theta: Tree, v: Array, h_BH: Array | None) -> Array:
    x = conv(theta, "stem", v)
    for i in range(how.blocks):
        x = block(theta, f"blocks.{i}", x)
    flat = jax.nn.elu(x).transpose(0, 3, 1, 2).reshape(len(x), -1)  # torch's order of features
    f_BH = linear(theta, "out", flat)
    coupled = f_BH if h_BH is None else jnp.concatenate([f_BH + h_BH, h_BH], -1)
    return jnp.square(jax.nn.elu(linear(theta, "head", coupled))).sum(-1)


def moments_of_q(phi: Tree, v: Array) -> tuple[Array, Array]:
    x = jax.nn.elu(conv(phi, "0", v, 4, ((2, 2), (2, 2))))
    x = jax.nn.elu(conv(phi, "2", x, 2, ((1, 1), (1, 1))))
    mean, log_std = jnp.split(conv(phi, "4", x, padding="VALID").reshape(len(v), -1), 2, -1)
    return mean, log_std


def log_q(phi: Tree, v: Array, h_BH: Array) -> Array:
    mean, log_std = moments_of_q(phi, v)
    return -(0.5 * jnp.square((h_BH - mean) * jnp.exp(-log_std)) + log_std).sum(-1)


def lower_loss(how: Settings, phi: Tree, theta: Tree, v: Array, noise_BH: Array) -> Array:
    mean, log_std = moments_of_q(phi, v)
    h = mean + jnp.exp(log_std) * noise_BH
    slope = jax.grad(lambda h: energy(how, theta, v, h).sum())(h)
    difference = slope - (h - mean) * jnp.exp(-2 * log_std)
    return (0.5 * jnp.square(difference).sum(-1) / jnp.asarray(how.sigma, v.dtype)).mean()


def residual(how: Settings, score: Array, eps: Array) -> Array:
    sigma = jnp.asarray(how.sigma, eps.dtype)[:, None, None, None]
    return 0.5 * jnp.square(score / sigma + eps / how.sigma0**2).sum((1, 2, 3)).mean()


def gradient(
    how: Settings, theta: Tree, phi: Tree, moments: Moments, v: Array, eps: Array, noise: Array
) -> tuple[Tree, Tree, Moments]:
    """theta's gradient after K real steps and through N unrolled ones, then phi and its moments after the real ones.
    eps [K+N+1, ...] or [1, ...] if shared; noise [K+N+1, B, H]. Without a posterior, MDSM's."""
    sigma = jnp.asarray(how.sigma, v.dtype)[:, None, None, None]
    if not phi:

        def mdsm_loss(theta: Tree) -> Array:
            score = jax.grad(lambda x: -energy(how, theta, x, None).sum())(v + sigma * eps[0])
            return residual(how, score, eps[0])

        return jax.grad(mdsm_loss)(theta), phi, moments

    def lower_steps(theta: Tree, start: tuple[Tree, Moments], first: int, count: int, eps_root: float) -> Any:
        def one(at: tuple[Tree, Moments], drawn: tuple[Array | None, Array]) -> tuple[Any, None]:
            e = eps[0] if how.shared else drawn[0]
            g = jax.grad(partial(lower_loss, how))(at[0], theta, v + sigma * e, drawn[1])
            return adam(at[0], g, at[1], how.lr, how.betas, eps_root), None

        chosen = slice(first, first + count)
        return jax.lax.scan(one, start, (None if how.shared else eps[chosen], noise[chosen]))[0]

    phi, moments = lower_steps(theta, (phi, moments), 0, how.K, 0.0)

    def upper_loss(theta: Tree) -> Array:
        moved, _ = lower_steps(theta, (phi, moments), how.K, how.N, 1e-16)
        x = v + sigma * eps[-1]
        mean, log_std = moments_of_q(moved, x)
        h = mean + jnp.exp(log_std) * noise[-1]
        score = jax.grad(lambda x: (-energy(how, theta, x, h) - log_q(moved, x, h)).sum())(x)
        return residual(how, score, eps[-1])

    return jax.grad(upper_loss)(theta), phi, moments


def step(how: Settings, at: Training, v: Array) -> Training:
    """A step with noise of its own."""
    key, of_eps, of_noise = jax.random.split(at.key, 3)
    count = how.K + how.N + 1
    eps = jax.random.normal(of_eps, (1 if how.shared else count, *v.shape), v.dtype)
    noise = jax.random.normal(of_noise, (count, len(v), how.latent), v.dtype)
    g, phi, phi_moments = gradient(how, at.theta, at.phi, at.phi_moments, v, eps, noise)
    theta, theta_moments = adam(at.theta, g, at.theta_moments, how.lr, how.betas)
    return Training(theta, theta_moments, phi, phi_moments, key)


def compiled_step(how: Settings) -> Any:
    return jax.jit(partial(step, how), donate_argnums=0)
