"""Contrastive divergence: written plainly in torch, and a step of scikit-learn's BernoulliRBM of the same size."""

from typing import Any

import torch
from torch import Tensor

from eblvm.bench.contestants.roster import contestant
from eblvm.bench.contestants.steps import batch
from eblvm.bench.naive import Cd
from eblvm.bench.tools.registry import Case
from eblvm.engine.methods.base import State
from eblvm.engine.types import Params


class PlainCd:
    def __init__(self, case: Case):
        c = case.config
        torch.manual_seed(c["seed"])
        self.v = batch(c, case.shape)
        self.method = Cd(case.visible, c["latent"], sweeps=c["sweeps"], lr=c["lr"][0], betas=(c["beta1"], c["beta2"]))
        self.method.model.to(self.v.dtype)

    def gradient(self, state: State, v: Tensor, noise: Any) -> Params:
        for name, p in self.method.model.named_parameters():
            p.data.copy_(state.theta.params[name])
        return dict(zip(state.theta.params, self.method.gradient(v, noise["sweeps"]), strict=True))

    def __call__(self) -> None:
        self.method.step(self.v)

    def inputs(self) -> list[Tensor]:
        p = list(self.method.model.parameters())
        moments = [t for s in self.method.optimizer.state.values() for t in s.values()]
        return [self.v, *p, *moments, *(q.grad for q in p if q.grad is not None)]


class ScikitLearnStep:
    """One persistent step on one minibatch, as its `fit` takes it."""

    def __init__(self, case: Case):
        import numpy as np
        from sklearn.neural_network import BernoulliRBM

        c = case.config
        self.v = batch(c, case.shape).numpy()
        self.rbm = BernoulliRBM(c["latent"], learning_rate=c["lr"][0], batch_size=c["batch"], random_state=0)
        self.random = np.random.RandomState(0)
        self.rbm.partial_fit(self.v)

    def __call__(self) -> None:
        self.rbm._fit(self.v, self.random)  # partial_fit without its check of the input


@contestant("naive", "grbm")
def plain(case: Case) -> PlainCd | None:
    return PlainCd(case) if case.config["method"] == "cd" else None


@contestant(
    "scikit-learn",
    "grbm",
    needs="sklearn",
    deviation="Binary visible units, a persistent chain and plain SGD: another model's step of the same size.",
)
def scikit_learn(case: Case) -> ScikitLearnStep | None:
    return ScikitLearnStep(case) if case.config["method"] == "cd" else None
