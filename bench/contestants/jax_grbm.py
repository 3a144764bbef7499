"""BiDSM and DSM on a GRBM in JAX, written as plainly as `bench/naive` and compiled whole by `jit`.

Replicas are a `vmap` of the step. XLA sees all steps of a minibatch at once, so with shared noise it computes v W once
by itself. Random numbers are those of JAX's default generator: on a CPU `unsafe_rbg` was slower.
Shape tags: B batch, D visible units, H latent units.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from eblvm.bench.contestants.grbm_settings import Settings

Tree = dict[str, Array]


class Moments(NamedTuple):
    m: Tree
    s: Tree
    count: Array


def quadratic(theta: Tree, v_BD: Array) -> Array:
    return 0.5 * jnp.square((v_BD - theta["b"]) * jnp.exp(-theta["log_sigma"])).sum(-1)


def energy(theta: Tree, v_BD: Array, h_BH: Array) -> Array:
    return quadratic(theta, v_BD) - ((v_BD @ theta["W"] + theta["c"]) * h_BH).sum(-1)


def free_energy(theta: Tree, v_BD: Array) -> Array:
    return quadratic(theta, v_BD) - jax.nn.softplus(v_BD @ theta["W"] + theta["c"]).sum(-1)


def logits_of(phi: Tree, v_BD: Array) -> Array:
    return v_BD @ phi["weight"].T + phi["bias"]


def log_q(logits_BH: Array, h_BH: Array) -> Array:
    return (h_BH * logits_BH - jax.nn.softplus(logits_BH)).sum(-1)


def sample(how: Settings, logits_BH: Array, logistic_BH: Array) -> Array:
    return jax.nn.sigmoid((logits_BH + logistic_BH) / how.temperature)


def lower_loss(how: Settings, phi: Tree, theta: Tree, v_BD: Array, logistic_BH: Array) -> Array:
    logits = logits_of(phi, v_BD)
    h = jax.nn.sigmoid(logits) if how.exact else sample(how, logits, logistic_BH)
    return (log_q(logits, h) + energy(theta, v_BD, h)).mean()


def adam(
    p: Tree, g: Tree, at: Moments, lr: float, betas: tuple[float, float], eps_root: float = 0.0
) -> tuple[Tree, Moments]:
    b1, b2 = betas
    t = at.count + 1
    m = jax.tree.map(lambda a, x: b1 * a + (1 - b1) * x, at.m, g)
    s = jax.tree.map(lambda a, x: b2 * a + (1 - b2) * x * x, at.s, g)
    rate, scale = lr / (1 - b1**t), 1 / (1 - b2**t)
    moved = jax.tree.map(lambda q, a, c: q - rate * a / (jnp.sqrt(scale * c + eps_root) + 1e-8), p, m, s)
    return moved, Moments(m, s, t)


def gradient(
    how: Settings, theta: Tree, phi: Tree, moments: Moments, v_BD: Array, eps: Array, logistic: Array
) -> tuple[Tree, Tree, Moments]:
    """theta's gradient after K real steps and through N unrolled ones; and phi and its moments after the real ones.
    eps [K+N+1, B, D], or [1, B, D] if shared; logistic [K+N+1, B, H], or [1, B, H] with an exact KL."""

    def noisy(i: int) -> Array:
        return v_BD + how.sigma * eps[0 if how.shared else i]

    def lower_gradient(phi: Tree, theta: Tree, i: int) -> Tree:
        return jax.grad(partial(lower_loss, how))(phi, theta, noisy(i), logistic[0 if how.exact else i])

    for k in range(how.K):
        g = lower_gradient(phi, theta, k)
        phi, moments = adam(phi, g, moments, how.lr, how.betas)

    def upper_loss(theta: Tree) -> Array:
        moved, at = phi, moments
        for n in range(how.K, how.K + how.N):
            g = lower_gradient(moved, theta, n)
            if how.sgd_rate is None:
                moved, at = adam(moved, g, at, how.lr, how.betas, 1e-16)
            else:
                moved = jax.tree.map(lambda p, x: p - how.sgd_rate * x, moved, g)
        x_BD = noisy(how.K + how.N)
        h = sample(how, logits_of(moved, x_BD), logistic[-1])

        def log_ratio(x_BD: Array) -> Array:
            return (-energy(theta, x_BD, h) - log_q(logits_of(moved, x_BD), h)).sum()

        return dsm_loss(how, jax.grad(log_ratio)(x_BD), eps[-1])

    return jax.grad(upper_loss)(theta), phi, moments


def dsm_loss(how: Settings, score_BD: Array, eps_BD: Array) -> Array:
    return 0.5 * jnp.square(score_BD + eps_BD / how.sigma).sum(-1).mean()


def dsm_gradient(how: Settings, theta: Tree, v_BD: Array, eps_BD: Array) -> Tree:
    def loss(theta: Tree) -> Array:
        score = jax.grad(lambda x: -free_energy(theta, x).sum())(v_BD + how.sigma * eps_BD)
        return dsm_loss(how, score, eps_BD)

    return jax.grad(loss)(theta)


class Training(NamedTuple):
    theta: Tree
    theta_moments: Moments
    phi: Tree
    phi_moments: Moments
    key: Array


def step(how: Settings, at: Training, v_BD: Array) -> Training:
    """A step with noise of its own; without a posterior, DSM's."""
    key, of_eps, of_logistic = jax.random.split(at.key, 3)
    if not at.phi:
        g = dsm_gradient(how, at.theta, v_BD, jax.random.normal(of_eps, v_BD.shape, v_BD.dtype))
        phi, phi_moments = at.phi, at.phi_moments
    else:
        count, units = how.K + how.N + 1, at.phi["bias"].shape[-1]
        eps = jax.random.normal(of_eps, (1 if how.shared else count, *v_BD.shape), v_BD.dtype)
        logistic = jax.random.logistic(of_logistic, (1 if how.exact else count, len(v_BD), units), v_BD.dtype)
        g, phi, phi_moments = gradient(how, at.theta, at.phi, at.phi_moments, v_BD, eps, logistic)
    theta, theta_moments = adam(at.theta, g, at.theta_moments, how.lr, how.betas)
    return Training(theta, theta_moments, phi, phi_moments, key)


def compiled_step(how: Settings, replicated: bool) -> Any:
    one = partial(step, how)
    return jax.jit(jax.vmap(one) if replicated else one, donate_argnums=0)
