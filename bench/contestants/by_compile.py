"""`torch.compile` of the plain step, written with `torch.func`; theta by torch's fused Adam."""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config as inductor

from eblvm.bench.contestants import functional_grbm
from eblvm.bench.contestants.grbm_settings import Settings
from eblvm.bench.contestants.roster import Entrant, contestant
from eblvm.bench.contestants.steps import CaseStep
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.types import Params


class CompiledGrbm:
    """BiDSM or DSM of one case, replicas by `vmap`."""

    def __init__(self, case: Case):
        c = case.config
        self.case, self.bilevel = case, c["method"] == "bidsm"
        self.how = Settings.of(case)
        function = functional_grbm.gradient if self.bilevel else functional_grbm.dsm_gradient
        one = partial(function, self.how)
        inductor.compile_threads = 1  # others' threads would not survive the fork of its workers
        self.compiled = torch.compile(torch.vmap(one) if c.replicated else one)
        self.prepared = False

    def prepare(self) -> None:
        """What training needs beside the gradient."""
        engine = CaseStep(self.case)
        self.v, state = engine.v, engine.state
        self.theta = {name: p.clone() for name, p in state.theta.params.items()}
        self.lower = [*lower_state(state)] if self.bilevel else []
        self.optimizer = torch.optim.Adam(self.theta.values(), self.how.lr, self.how.betas, fused=True)
        self.prepared = True

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        if not self.bilevel:
            return self.compiled(state.theta.params, v, noise["perturb"][0])
        latents = noise["latent"][-1:] if self.how.exact else noise["latent"]
        g, *_ = self.compiled(
            state.theta.params, *lower_state(state), v, noise["perturb"], [one.select(-2, 0) for one in latents]
        )
        return g

    @torch.no_grad()
    def __call__(self) -> None:
        if not self.prepared:
            self.prepare()
        if self.bilevel:
            c, steps = self.case.config, self.how.K + self.how.N
            eps = [torch.randn_like(self.v) for _ in range(1 if c["noise"] == "shared" else steps + 1)]
            shape = (*self.v.shape[:-1], c["latent"])
            logistic = [
                self.v.new_empty(shape).uniform_().logit_(1e-6) for _ in range(1 if self.how.exact else steps + 1)
            ]
            g, phi, m, s = self.compiled(self.theta, *self.lower, self.v, eps, logistic)
            self.lower = [phi, m, s, self.lower[3] + self.how.K]
        else:
            g = self.compiled(self.theta, self.v, torch.randn_like(self.v))
        for name, p in self.theta.items():
            p.grad = g[name]
        self.optimizer.step()

    def inputs(self) -> None:
        return None  # compiled code allocates where no dispatch mode sees it


def lower_state(state: State) -> tuple[Params, Params, Params, Tensor]:
    params, moments, _ = state.phi
    phi, m, s = (
        {k.removeprefix("net.0."): t.clone() for k, t in tree.items()} for tree in (params, moments.m, moments.v)
    )
    return phi, m, s, moments.step_count.to(next(iter(m.values())).dtype)


@contestant("torch.compile", "grbm", "toy")
def grbm(case: Case) -> Entrant | None:
    c = case.config
    if c["method"] not in ("bidsm", "dsm") or c.get("best_response", "unroll") != "unroll":
        return None
    if c.get("N", 0) > 0:
        return None  # 40 s of CPU time to compile N=5, many minutes with replicas
    return CompiledGrbm(case)
