"""Objectives by method name: a method is a product of pieces, and this is where the products are written down."""

from dataclasses import replace
from typing import Any

from eblvm.engine.config import BILEVEL, SCORE_MATCHING, VAGES, VARIATIONAL, Config
from eblvm.engine.data import Dataset
from eblvm.engine.errors import UserError
from eblvm.engine.methods import divergences
from eblvm.engine.methods.bidvl import AlternatingUpdate, Bidvl
from eblvm.engine.methods.bilevel import Bism, FreeEnergy, Variational
from eblvm.engine.methods.contrastive import ContrastiveDivergence
from eblvm.engine.methods.losses import Dsm, Ksd, Mdsm, ScoreLoss, Sm, Ssm
from eblvm.engine.methods.nce import GaussianNoise, Nce, Vnce
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.methods.update import Objective, State, Update
from eblvm.engine.methods.vages import ImportanceSampling, Langevin, Vages
from eblvm.engine.models import check_fit, energy_for, posterior_for
from eblvm.engine.models.bidvl import nets_for
from eblvm.engine.models.energy import Energy
from eblvm.engine.models.grbm import GRBM
from eblvm.engine.models.posteriors import Bernoulli, Posterior
from eblvm.engine.optim.optimizers import Adam, Sgd
from eblvm.kernels import philox

__all__ = ["Objective", "State", "Update", "build"]


def build(config: Config, dataset: Dataset, energy: Energy | None = None, posterior: Posterior | None = None) -> Update:
    """The training step of `config` on `dataset`, with the configuration's own models or with those given."""
    shape = tuple(dataset.train.shape[1:])
    if config.method == "bidvl":
        if energy or posterior:
            raise UserError("method 'bidvl' trains its own three nets; leave `energy` and `posterior` out")
        return _bidvl(config, shape)
    energy = energy or energy_for(config, shape)
    posterior = posterior or posterior_for(config, shape)
    adam = Adam((config.beta1, config.beta2))

    objective: Objective
    if config.method in (*SCORE_MATCHING, *VARIATIONAL):
        if config.variational:
            check_fit(energy, posterior, shape)
        estimator = _estimator(config, energy, posterior) if config.variational else FreeEnergy(energy)
        objective = ScoreMatching(
            estimator,
            _score_loss(config),
            adam,
            shared_noise=config.noise == "shared",
            directions=config.directions,
            draw_direction=philox.rademacher if config.direction == "rademacher" else philox.normal,
        )
    elif not isinstance(energy, GRBM):
        raise UserError(f"method {config.method!r} is for the GRBM, got {type(energy).__name__}")
    elif config.method in ("cd", "pcd"):
        objective = ContrastiveDivergence(energy, adam, config.sweeps, persistent=config.method == "pcd")
    elif config.method == "nce":
        objective = Nce(energy, adam, GaussianNoise.fitted(dataset.train))
    elif not isinstance(posterior, Bernoulli):
        raise UserError(f"method 'vnce' sums over binary h, got the posterior {type(posterior).__name__}")
    else:
        contrast = GaussianNoise.fitted(dataset.train)
        objective = Vnce(energy, posterior, adam, adam, contrast, config.K, config.latent_samples)
    return Update(objective, adam, config.clip_norm, config.ema, apex=config.optimizer == "apex")


def _estimator(config: Config, energy: Energy, posterior: Posterior) -> Variational:
    adam, divergence = Adam((config.beta1, config.beta2)), divergences.BY_NAME[config.divergence]
    shared: dict[str, Any] = {
        "exact_posterior": config.posterior == "exact",
        "lower_samples": config.latent_samples,
    }
    if config.method in BILEVEL:
        sgd = config.unroll_optimizer == "sgd"
        return Bism(
            energy,
            posterior,
            divergence,
            config.K,
            config.N,
            Sgd() if sgd else adam,
            config.unroll_memory,
            adam,
            auto_unroll_rate=sgd and config.unroll_lr is None,
            sync=config.sync,
            **shared,
        )
    if config.method not in VAGES:
        return ImportanceSampling(energy, posterior, divergence, config.K, adam, config.L, **shared)
    return Vages(
        energy,
        posterior,
        divergence,
        config.K,
        adam,
        config.L,
        Langevin(config.C, config.langevin_step or 2e-4 * posterior.latent, config.langevin_noise),
        **shared,
        covariance=config.covariance,
        independent=config.samples == "independent",
        control_variate=config.control_variate,
    )


def _bidvl(config: Config, shape: tuple[int, ...]) -> Update:
    adam = Adam((config.beta1, config.beta2))
    objective = Bidvl(
        *nets_for(config, shape),
        adam,
        replace(adam, weight_decay=config.weight_decay),
        config.K,
        config.N,
        config.unroll_memory,
        joint=config.bidvl_energy == "joint",
        symmetric=config.bidvl_divergence == "symmetric",
        opposite=config.bidvl_opposite,
        latent=config.bidvl_latent,
        ratio=config.bidvl_ratio,
        ratio_bias=config.bidvl_bias,
        hinge=config.bidvl_upper == "hinge",
        sync=config.sync,
    )
    return AlternatingUpdate(objective, adam, config.clip_norm, config.ema)


def _score_loss(config: Config) -> ScoreLoss:
    """The loss that a method's name ends in."""
    name = config.method.split("-")[-1].removeprefix("bi")
    if name == "dsm":
        return Dsm(config.sigma)
    if name == "mdsm":
        low, high = config.sigma_range
        return Mdsm((low, high), config.sigma_spacing, config.sigma0)
    if name == "ksd":
        return Ksd(config.kernel_width)
    return Ssm() if name == "ssm" else Sm()
