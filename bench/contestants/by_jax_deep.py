"""JAX with `jit` on deep energies."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.by_jax import JaxStep, arrays
from eblvm.bench.contestants.deep import can, pairs
from eblvm.bench.contestants.roster import contestant
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.suites import deep
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.optim.base import Moments
from eblvm.engine.types import Params


def channels_last(t: Tensor) -> Tensor:
    """NCHW -> NHWC of images [..., C, H, W], OIHW -> HWIO of kernels by `kernel`."""
    return t.movedim(-3, -1).contiguous()


def kernel(t: Tensor) -> Tensor:
    return t.permute(2, 3, 1, 0).contiguous() if t.dim() == 4 else t


def from_kernel(t: Tensor) -> Tensor:
    return t.permute(3, 2, 0, 1) if t.dim() == 4 else t


class JaxDeep(JaxStep):
    """MDSM or BiMDSM of one case on the lean network."""

    def __init__(self, case: Case):
        super().__init__(case)
        from eblvm.bench.contestants import jax_deep

        self.deep, c = jax_deep, case.config
        naive = deep.naive_method(c, case.shape)  # type: ignore[arg-type]
        bilevel = c["method"] == "bimdsm"
        self.theta_names = [name for name, _ in naive.model.named_parameters()]
        self.phi_names = [name for name, _ in naive.posterior.named_parameters()] if bilevel else []  # type: ignore[attr-defined]
        self.how = jax_deep.Settings(
            N=c["N"] if bilevel else 0,
            K=c["K"] if bilevel else 0,
            blocks=len(naive.model.blocks),
            sigma=tuple(naive.sigma.flatten().tolist()),
            sigma0=c["sigma0"],
            lr=c["lr"][0],
            betas=(c["beta1"], c["beta2"]),
            shared=bilevel and c["noise"] == "shared",
            latent=c["latent"],
        )
        engine = CaseStep(case)
        with self.precision():
            self.state = self.training(engine.state, self.jax.random.key(c["seed"]))
            self.v = arrays(channels_last(engine.v))
            self.step = jax_deep.compiled_step(self.how)

    def renamed(self, tree: Params, names: list[str]) -> Any:
        return {name: arrays(kernel(t)) for name, t in zip(names, tree.values(), strict=True)}

    def moments(self, found: Moments, names: list[str]) -> Any:
        import jax.numpy as jnp

        if not found.m:
            return self.deep.Moments({}, {}, jnp.zeros(()))
        count = found.step_count.to(next(iter(found.m.values())).dtype)
        return self.deep.Moments(self.renamed(found.m, names), self.renamed(found.v, names), arrays(count))

    def training(self, state: State, key: Any) -> Any:
        theta, phi = (
            self.renamed(weights.params, names)
            for weights, names in ((state.theta, self.theta_names), (state.phi, self.phi_names))
        )
        opts = self.moments(state.theta.moments, self.theta_names), self.moments(state.phi.moments, self.phi_names)
        return self.deep.Training(theta, opts[0], phi, opts[1], key)

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        with self.precision():
            at = self.training(state, None)
            latents = torch.stack([latent for _, latent in pairs(noise)])
            eps = channels_last(torch.stack(list(noise["perturb"])))
            function = self.jax.jit(partial(self.deep.gradient, self.how))
            images = arrays(channels_last(v))
            g, *_ = function(at.theta, at.phi, at.phi_moments, images, arrays(eps), arrays(latents))
            found = [from_kernel(torch.tensor(g[name].__array__())) for name in self.theta_names]
        return dict(zip(state.theta.params, found, strict=True))


@contestant("jax", "deep", needs="jax")
def mdsm(case: Case) -> JaxDeep | None:
    c = case.config
    if not can(case) or c["checkpoint"] != "none" or c.get("N", 0) > 0:
        return None  # through unrolled steps it compiles for many minutes
    return JaxDeep(case)
