"""The public names, `import eblvm`: stable, documented in docs/api.md, and imported when first used."""

from eblvm.engine.api import load, train
from eblvm.engine.autodiff.checkpointing import checkpointed
from eblvm.engine.autodiff.collectives import differentiable_mean
from eblvm.engine.autodiff.derivatives import grad, vjp
from eblvm.engine.autodiff.unroll import unroll
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.errors import DivergedError, UserError
from eblvm.engine.evaluation.distances import distances, fid
from eblvm.engine.methods.bidvl import Bidvl
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.losses.dsm import Dsm
from eblvm.engine.methods.losses.mdsm import Mdsm
from eblvm.engine.methods.losses.ssm import Ssm
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.methods.vages import Vages
from eblvm.engine.nets.base import Energy, Separable
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian, Posterior
from eblvm.engine.optim.adam import Adam
from eblvm.engine.recipes import recipe
from eblvm.engine.run import Run
from eblvm.engine.sampling.gibbs import gibbs
from eblvm.engine.sampling.langevin import langevin
from eblvm.kernels import philox
from eblvm.kernels.elu_second_order import elu_second_order
from eblvm.kernels.sliced_hvp import sliced_hvp

__all__ = [
    "GRBM", "Adam", "Bernoulli", "Bidvl", "Bism", "Config", "Dataset", "DivergedError", "Dsm", "Energy", "Gaussian",
    "Mdsm", "Posterior", "Run", "ScoreMatching", "Separable", "Ssm", "UserError", "Vages", "checkpointed",
    "differentiable_mean", "distances", "elu_second_order", "fid", "gibbs", "grad", "langevin", "load", "philox",
    "recipe", "sliced_hvp", "train", "unroll", "vjp",
]  # fmt: skip
