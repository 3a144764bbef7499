"""Engine against naive procedure on the published networks, in fp64 with fresh noise: MDSM, and BiMDSM for N = 0, 2."""

import pytest
import torch
from torch.utils._pytree import tree_map

from eblvm.bench.naive import BiMdsm, Mdsm
from eblvm.bench.suites.deep import load
from eblvm.bench.tools.agreement import TOLERANCE
from eblvm.engine.methods import divergences, losses
from eblvm.engine.methods.bilevel import Bism, FreeEnergy
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.models.published import PublishedGaussian, head_width, published_eblvm, published_ebm
from eblvm.engine.optim.optimizers import Adam
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

B, SHAPE, H, WIDTH, DEPTH, K, LR, BETAS = 4, (3, 16, 16), 3, 2, 12, 2, 1e-3, (0.9, 0.95)


@pytest.mark.parametrize("N", [None, 0, 2], ids=["mdsm", "N=0", "N=2"])
def test_engine_and_naive_gradients_agree(N: int | None) -> None:
    adam, sigma = Adam(BETAS), torch.linspace(0.05, 1.2, B, dtype=torch.float64)
    how = {"latent": H, "width": WIDTH, "depth": DEPTH, "head_width": head_width(SHAPE, WIDTH), "sigma0": 0.1}
    how |= {"lr": LR, "betas": BETAS, "published": True}
    if N is None:
        estimator = FreeEnergy(published_ebm(SHAPE, WIDTH, DEPTH))
        naive = Mdsm(SHAPE, sigma, **how)
    else:
        energy, posterior = published_eblvm(SHAPE, H, WIDTH, DEPTH), PublishedGaussian(SHAPE, H)
        estimator = Bism(energy, posterior, divergences.BY_NAME["fisher"], K, N, adam, "store", adam)
        naive = BiMdsm(SHAPE, sigma, **how, N=N, K=K, posterior_width=2)
    objective = ScoreMatching(estimator, losses.Mdsm((0.05, 1.2), "linear", 0.1), adam, shared_noise=False)
    v = philox.uniform(Key(1, 0), 0, B, SHAPE, dtype=torch.float64)
    state = tree_map(lambda t: t.double(), objective.init(Key(5, 0), v))
    if N is not None:
        moments = {"m": 0.01, "v": 0.02}
        filled = {name: tree_map(lambda p, x=x: torch.full_like(p, x), state.phi) for name, x in moments.items()}
        state = state._replace(phi_opt=state.phi_opt._replace(**filled, taken=torch.tensor(3.0).double()))
    load(naive, state)
    noise, rate = objective.draw(Key(2, 0), v), torch.tensor(LR, dtype=torch.float64)
    with torch.no_grad():
        gradient, *_ = objective.gradient(state, v, noise, {"theta": rate, "phi": rate, "unroll": rate})
    latents = [latent[0] for latent in noise["latent"]] or [torch.empty(0)]
    draws = iter(zip(noise["perturb"], latents, strict=True))
    for (name, g), expected in zip(gradient.items(), naive.gradient(v, lambda: next(draws)), strict=True):
        assert (g - expected).abs().max() <= TOLERANCE * expected.abs().max(), name
