"""`python -m eblvm.bench.suites.newton_study [seeds]`: bias and spread of gradients, the table of docs/newton.md.

DSM on two visible units with a drawn deep head and a q that has taken `lower` steps. The true gradient has h integrated
out, on a grid for H = 2, by importance sampling around each posterior's mode for H = 10. Bias: distance of the mean
over draws from it; spread: standard deviation of one draw; both relative to its norm. fp64, one thread.
"""

import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from eblvm.engine import tables
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.methods import newton, newton_step
from eblvm.engine.methods.newton import Newton
from eblvm.engine.nets.base import Separable
from eblvm.engine.nets.deep import CoupledHead
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.types import Params

SIGMA, BATCH, DRAWS = 0.5, 16, 50
COLUMNS = ("H", "estimate", "bias", "error", "spread")


class Sampled(Separable):
    """The same energy with its head's closed expectations hidden."""

    has_expectations = False


class Toy:
    def __init__(self, H: int, seed: int, lower: int):
        torch.manual_seed(seed)
        head = CoupledHead(H, 24 if H == 2 else 80).to_empty(device="cpu")
        head.linear.reset_parameters()
        nn.init.uniform_(head.linear.weight, *(b * 1.5 / (2 * H) ** 0.5 for b in (-1, 1)))
        features = nn.Sequential(nn.Linear(2, 32), nn.ELU(), nn.Linear(32, H))
        self.H, self.closed, self.sampled = H, Separable(features, head), Sampled(features, head)
        self.posterior = Gaussian(nn.Sequential(nn.Linear(2, 64), nn.ELU(), nn.Linear(64, 2 * H)), H)
        self.theta = {k: p.detach() for k, p in self.closed.named_parameters()}
        self.phi = self.followed(lower)
        eps = torch.randn(BATCH, 2)
        self.v, self.target = 1.2 * torch.randn(BATCH, 2) + SIGMA * eps, -eps / SIGMA
        self.p = self.posterior.at(self.phi).params(self.v)

    def followed(self, lower: int) -> Params:
        phi = {k: p.detach().clone().requires_grad_() for k, p in self.posterior.named_parameters()}
        adam = torch.optim.Adam(phi.values(), lr=3e-3)
        for _ in range(lower):
            v = 1.3 * torch.randn(32, 2)
            p = self.posterior.at(phi).params(v)
            h = self.posterior.rsample(p, torch.randn(4, 32, self.H))
            energy = self.closed.at(self.theta).energy(v, h).mean(0)
            adam.zero_grad()
            (energy - p[1].sum(-1)).mean().backward()
            adam.step()
        return {k: p.detach() for k, p in phi.items()}

    def gradient(self, score: Callable[[Params], Tensor]) -> Tensor:
        found, _ = grad(lambda theta: ((score(theta) - self.target).square().sum(1).mean(), ()), self.theta)
        return torch.cat([found[name].flatten() for name in self.theta]).detach()

    def truth(self, samples: int = 32_000) -> Tensor:
        """log p(v) ~ logsumexp over h of -E(v, h) - log proposal(h), its score and the loss's gradient."""
        if self.H == 2:
            axis = torch.linspace(-9, 9, 141)
            h, log_proposal = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 1, 2), torch.zeros(1)
        else:
            h, log_proposal = self.proposed(samples)

        def score(theta: Params) -> Tensor:
            def log_p(v: Tensor) -> tuple[Tensor, tuple[()]]:
                return (-self.closed.at(theta).energy(v, h) - log_proposal).logsumexp(0).sum(), ()

            return grad(log_p, self.v)[0]

        return self.gradient(score)

    def proposed(self, samples: int) -> tuple[Tensor, Tensor]:
        """(h [samples, B, H], log density): Student's t around the mode of a Gaussian fit, with its curvature."""
        f = self.closed.at(self.theta).features(self.v).detach()
        mean, log_std = self.p
        for _ in range(4):
            slope, curvature = (
                self.closed.at(self.theta).expected(name, f, mean, log_std, "mean").detach()
                for name in ("slope", "curvature")
            )
            mean = mean - torch.linalg.solve(curvature, slope)
        factor = torch.linalg.cholesky(1.5 * torch.linalg.inv(curvature))
        t = torch.distributions.StudentT(8.0)
        z = t.sample((samples, BATCH, self.H))
        return mean + torch.einsum("bhk,sbk->sbh", factor, z), t.log_prob(z).sum(-1)

    def at_n0(self) -> Tensor:
        """BiSM with phi held fixed."""
        h = self.posterior.rsample(self.p, torch.randn(BATCH, self.H))

        def log_ratio(theta: Params, v: Tensor) -> Tensor:
            log_q = self.posterior.log_prob(self.posterior.at(self.phi).params(v), h)
            return (-self.closed.at(theta).energy(v, h) - log_q).sum()

        return self.gradient(lambda theta: grad(lambda v: (log_ratio(theta, v), ()), self.v)[0])

    def by_vages(self, L: int) -> Tensor:
        """Three independent sets of L samples of q: for the value, for the slope and for the covariance."""
        value, slope, covariance = self.posterior.rsample(self.p, torch.randn(3 * L, BATCH, self.H)).chunk(3)

        def score(theta: Params) -> Tensor:
            f, pull = vjp(lambda v: self.closed.at(theta).features(v), self.v)
            l_LB = -self.closed.at(theta).head(f, covariance)
            t_LB = (l_LB - l_LB.detach()) - (l_LB - l_LB.detach()).mean(0)

            def tilted(x: Tensor) -> tuple[Tensor, tuple[()]]:
                return (t_LB * -self.closed.at(theta).head(x, covariance)).sum() / (L - 1), ()

            s = pull(newton.vaes(self.closed.at(theta), f, slope) + grad(tilted, f)[0])
            return pull(newton.vaes(self.closed.at(theta), f, value)).detach() + s - s.detach()

        return self.gradient(score)

    def by_newton(self, options: Newton, closed: bool, L: int = 1) -> Tensor:
        energy = self.closed if closed else self.sampled
        many = newton_step.antithetic(torch.randn(options.response_samples, BATCH, self.H))
        noise = torch.randn(L, BATCH, self.H)

        def score(theta: Params) -> Tensor:
            f, pull = vjp(lambda v: energy.at(theta).features(v), self.v)
            moved = newton_step.best_response(options, energy, self.posterior, theta, f, self.p, many)
            return pull(options.cotangent(energy.at(theta), self.posterior, moved, f, noise))

        return self.gradient(score)


def estimates(toy: Toy) -> dict[str, Callable[[], Tensor]]:
    def by(closed: bool, L: int = 1, **options: object) -> Callable[[], Tensor]:
        return lambda: toy.by_newton(Newton(**options), closed, L)  # type: ignore[arg-type]

    return {
        "N=0": toy.at_n0,
        "VaGES L=2": lambda: toy.by_vages(2),
        "VaGES L=10": lambda: toy.by_vages(10),
        "S=8, single": by(False, response_score="single"),
        **{f"S={S}, pair": by(False, response_samples=S) for S in (2, 4, 8, 16)},
        "S=8, pair, 0 steps": by(False, response_steps=0),
        "S=8, pair, full": by(False, response_block="full"),
        "S=8, 5 pairs": by(False, L=5),
        "S=8, pair, floor 0.5": by(False, floor=0.5),
        "S=8, pair, floor 1": by(False, floor=1.0),
        "closed, single": by(True, response_score="single"),
        "closed, pair": by(True, response_score="pairs"),
        "closed": by(True),
        "closed, full": by(True, response_block="full"),
    }


def row(truths: list[Tensor], toys: list[Toy], name: str) -> tuple[float, float, float]:
    """Bias, its Monte Carlo error, spread: means over the toys."""
    found = []
    for toy, truth in zip(toys, truths, strict=True):
        draws = torch.stack([estimates(toy)[name]() for _ in range(DRAWS)])
        spread = draws.std(0).norm() / truth.norm()
        found.append(torch.stack([(draws.mean(0) - truth).norm() / truth.norm(), spread / DRAWS**0.5, spread]))
    bias, error, spread = torch.stack(found).mean(0).tolist()
    return bias, error, spread


def main(seeds: int) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    rows = []
    for H, lower in ((2, 300), (10, 300)):
        toys = [Toy(H, seed, lower) for seed in range(seeds)]
        truths = [toy.truth() for toy in toys]
        rows += [[H, name, *(f"{x:.3f}" for x in row(truths, toys, name))] for name in estimates(toys[0])]
    print(tables.markdown(COLUMNS, rows))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
