"""The nn.Modules of energies and posteriors. Files with options read them as `nets.GRBM`, see cli/__init__.py."""

from eblvm.engine.nets.base import Energy, Net, Separable
from eblvm.engine.nets.grbm import GRBM, Contrast, require_grbm, sweep
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian, Posterior, check_fit

__all__ = [
    "GRBM", "Bernoulli", "Contrast", "Energy", "Gaussian", "Net", "Posterior", "Separable", "check_fit",
    "require_grbm", "sweep",
]  # fmt: skip
