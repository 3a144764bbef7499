"""JAX with `jit`: the plain step as a JAX user would have it, on one thread."""

import os
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.bench.contestants.grbm_settings import Settings
from eblvm.bench.contestants.roster import Entrant, contestant
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.optim import replicas
from eblvm.engine.optim.base import Moments
from eblvm.engine.types import Params

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def import_jax() -> Any:
    os.environ.setdefault("XLA_FLAGS", ONE_THREAD)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    return jax


def arrays(tree: Any, prefix: str = "") -> Any:
    """Tensors as JAX's arrays of the same type."""
    import jax.numpy as jnp

    if isinstance(tree, dict):
        return {name.removeprefix(prefix): arrays(t) for name, t in tree.items()}
    return jnp.asarray(tree.numpy())


def tensors(tree: Any) -> Params:
    return {name: torch.from_numpy(np.array(x)) for name, x in tree.items()}


class JaxStep:
    """A compiled step of one case: `step` maps `state` and the batch `v` to the next state."""

    def __init__(self, case: Case):
        self.jax, self.case = import_jax(), case
        self.state: Any
        self.v: Any
        self.step: Any

    def precision(self) -> Any:
        return self.jax.enable_x64(self.case.config["dtype"] == "float64")

    def __call__(self) -> None:
        with self.precision():
            self.state = self.step(self.state, self.v)
            self.jax.block_until_ready(self.state.theta)

    def inputs(self) -> None:
        return None  # XLA allocates for itself


class JaxGrbm(JaxStep):
    """BiDSM or DSM of one case."""

    def __init__(self, case: Case):
        super().__init__(case)
        from eblvm.bench.contestants import jax_grbm

        self.grbm, c = jax_grbm, case.config
        self.how = Settings.of(case)
        engine = CaseStep(case)
        keys = self.jax.random.split(self.jax.random.key(c["seed"]), c["replicas"])
        with self.precision():
            self.state = self.training(engine.state, keys if c.replicated else keys[0])
            self.v = arrays(engine.v)
            self.step = jax_grbm.compiled_step(self.how, c.replicated)

    def moments(self, found: Moments) -> Any:
        import jax.numpy as jnp

        if not found.m:
            return self.grbm.Moments(
                {}, {}, jnp.zeros(self.case.config["replicas"]) if self.case.config.replicated else 0
            )
        m, s = (arrays(tree, "net.0.") for tree in (found.m, found.v))
        return self.grbm.Moments(m, s, arrays(found.step_count.to(next(iter(found.m.values())).dtype)))

    def training(self, state: State, key: Any) -> Any:
        theta, phi = arrays(state.theta.params), arrays(state.phi.params, "net.0.")
        return self.grbm.Training(theta, self.moments(state.theta.moments), phi, self.moments(state.phi.moments), key)

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        if self.case.config.replicated:
            count = range(self.case.config["replicas"])
            found = [self._one(*(replicas.pick(tree, r) for tree in (state, v, noise))) for r in count]
            return {name: torch.stack([one[name] for one in found]) for name in found[0]}
        return self._one(state, v, noise)

    def _one(self, state: State, v: Tensor, noise: Any) -> Params:
        import jax.numpy as jnp

        with self.precision():
            at = self.training(state, None)
            eps = jnp.stack([arrays(e) for e in noise["perturb"]])
            if not at.phi:
                return tensors(self.jitted("dsm_gradient")(at.theta, arrays(v), eps[0]))
            latents = noise["latent"][-1:] if self.how.exact else noise["latent"]
            logistic = jnp.stack([arrays(latent[:, 0]) for latent in latents])
            g, *_ = self.jitted("gradient")(at.theta, at.phi, at.phi_moments, arrays(v), eps, logistic)
        return tensors(g)

    def jitted(self, name: str) -> Any:
        return self.jax.jit(partial(getattr(self.grbm, name), self.how))


@contestant("jax", "grbm", "toy", needs="jax")
def grbm(case: Case) -> Entrant | None:
    c = case.config
    if c["method"] not in ("bidsm", "dsm") or c.get("best_response", "unroll") != "unroll":
        return None
    return JaxGrbm(case)
