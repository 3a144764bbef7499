"""The Fisher divergence between data and an EBLVM by a critic and VaES (VaGES appendix E, theorem 5):

    D_F(p_D || p) = max_f E_{v ~ p_D} [ s(v).f(v) + eps^T grad_v f(v) eps - 1/2 |f(v)|^2 ],   E eps eps^T = I,

attained at f = s - grad log p_D. The model's score s is VaES: no normaliser, no exact posterior.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.methods.base import Nets, Rates, Rows
from eblvm.engine.methods.estimates import Loss
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.methods.vages import Vages
from eblvm.engine.nets.base import Net, fan_in_uniform
from eblvm.engine.optim.adam import Adam
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


class Critic(Net):
    """f(v): R^D -> R^D, an MLP with two hidden layers of one width."""

    def __init__(self, visible: int, width: int):
        super().__init__()
        layers = [nn.Linear(visible, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus()]
        self.net = nn.Sequential(*layers, nn.Linear(width, visible))

    def initial(self, key: Key) -> Params:
        return fan_in_uniform(self, key, Purpose.EVAL)

    def value(self, v: Tensor, score: Tensor, eps: Tensor) -> Tensor:
        """s.f + eps^T grad f eps - 1/2 |f|^2, one value a sample."""
        f, pull = vjp(self.net, v)
        return ((score - 0.5 * f) * f + pull(eps) * eps).sum(-1)


class FisherEstimate(NamedTuple):
    value: float
    standard_error: float


@torch.no_grad()
def fisher_divergence(
    vages: Vages,
    nets: Nets,
    theta: Params,
    phi: Params,
    train: Tensor,
    test: Tensor,
    *,
    width: int = 128,
    steps: int = 20_000,
    batch: int = 100,
    lr: float = 2e-4,
    seed: int = 0,
) -> FisherEstimate:
    """Train the critic, and q by K steps a minibatch, on `train` [n, D]; the estimate on `test` at the end."""
    critic, adam = Critic(train.shape[1], width), Adam((0.9, 0.999))
    kwargs: dict[str, Any] = {"dtype": train.dtype, "device": train.device}
    weights = {k: p.to(**kwargs) for k, p in critic.initial(Key(seed, 0)).items()}
    q, eta = nets.phi_optimizer.init(phi), adam.init(weights)
    rate = torch.full((), lr, **kwargs)
    seeds = torch.tensor(seed).to(train.device)
    rates: Rates = {"phi": rate}
    # The loss is of no consequence: the steps on q and the estimate are VaGES's own.
    method = ScoreMatching(vages, Loss())

    def parts(v: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Return the model's score by VaES, and the critic's direction."""
        nonlocal q
        key = Key(seeds, step)
        noise = vages.draw(nets, key, Rows.of(key, v))
        (batch,) = method.batches(v, noise | {"perturb": []})
        features = method.features(nets, theta, batch.v, rates)
        response, q, _ = vages.respond(nets, theta, features.f, q, [batch], noise, rates)
        estimate = vages.estimate(nets, theta, response, features, batch, noise, rates)
        eps = philox.rademacher(key, purpose(Purpose.DIRECTION), len(v), (v.shape[1],), **kwargs)
        return estimate.score(), eps

    for step in range(steps):
        start = step * batch % (len(train) - batch + 1)
        v = train[start : start + batch]
        score, eps = parts(v, step)

        def loss(eta: Params, v: Tensor = v, score: Tensor = score, eps: Tensor = eps) -> tuple[Tensor, tuple[()]]:
            return -critic.at(eta).value(v, score, eps).mean(), ()

        eta = adam.step(eta, grad(loss, eta.params)[0], rate)
    values = critic.at(eta.params).value(test, *parts(test, steps))
    return FisherEstimate(float(values.mean()), float(values.std() / len(values) ** 0.5))
