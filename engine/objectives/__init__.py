"""Objectives by method name: a method is a product of pieces, and this is where the products are written down."""

from eblvm.engine.bilevel.optimizers import Adam, Sgd
from eblvm.engine.config import BILEVEL, SCORE_MATCHING, Config
from eblvm.engine.data import Dataset
from eblvm.engine.models.grbm import GRBM
from eblvm.engine.models.posteriors import Bernoulli
from eblvm.engine.objectives import divergences
from eblvm.engine.objectives.contrastive import ContrastiveDivergence
from eblvm.engine.objectives.estimators import Bism, FreeEnergy
from eblvm.engine.objectives.nce import GaussianNoise, Nce, Vnce
from eblvm.engine.objectives.score_losses import Dsm, Mdsm, ScoreLoss, Sm, Ssm
from eblvm.engine.objectives.score_matching import ScoreMatching
from eblvm.engine.objectives.state import Objective, State, Update
from eblvm.kernels import philox

__all__ = ["Objective", "State", "Update", "build"]


def build(config: Config, dataset: Dataset) -> Update:
    """The training step of `config` on a GRBM for `dataset`."""
    visible = dataset.train.shape[1]
    energy = GRBM(visible, config.latent)
    hidden = (config.posterior_width,) if config.posterior == "mlp" else ()
    posterior = Bernoulli(visible, config.latent, hidden, config.temperature)
    adam = Adam((config.beta1, config.beta2))

    objective: Objective
    if config.method in SCORE_MATCHING or config.method in BILEVEL:
        estimator: FreeEnergy | Bism = FreeEnergy(energy)
        if config.method in BILEVEL:
            sgd = config.unroll_optimizer == "sgd"
            estimator = Bism(
                energy,
                posterior,
                divergences.BY_NAME[config.divergence],
                config.K,
                config.N,
                Sgd() if sgd else adam,
                config.unroll_memory,
                adam,
                auto_unroll_rate=sgd and config.unroll_lr is None,
                exact_posterior=config.posterior == "exact",
            )
        objective = ScoreMatching(
            estimator,
            _score_loss(config),
            adam,
            shared_noise=config.noise == "shared",
            latent_samples=config.latent_samples,
            directions=config.directions,
            draw_direction=philox.rademacher if config.direction == "rademacher" else philox.normal,
        )
    elif config.method in ("cd", "pcd"):
        objective = ContrastiveDivergence(energy, adam, config.sweeps, persistent=config.method == "pcd")
    elif config.method == "nce":
        objective = Nce(energy, adam, GaussianNoise.fitted(dataset.train))
    else:
        contrast = GaussianNoise.fitted(dataset.train)
        objective = Vnce(energy, posterior, adam, adam, contrast, config.K, config.latent_samples)
    return Update(objective, adam, config.clip_norm, config.ema)


def _score_loss(config: Config) -> ScoreLoss:
    name = config.method.removeprefix("bi")
    if name == "dsm":
        return Dsm(config.sigma)
    if name == "mdsm":
        low, high = config.sigma_range
        return Mdsm((low, high), config.sigma_spacing, config.sigma0)
    return Ssm() if name == "ssm" else Sm()
