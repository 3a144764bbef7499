"""The nn.Modules of energies and posteriors. Files with options read them as `nets.GRBM`, see cli/lazy_import.py."""

from eblvm.engine.nets.base import Energy, Net, Separable
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli, Gaussian, Posterior

__all__ = ["GRBM", "Bernoulli", "Energy", "Gaussian", "Net", "Posterior", "Separable"]
