"""Training methods: the products of estimators and losses, and methods of their own, each in one file.

A new file here, or a new loss in `losses/`, is found by the registries of this file.
"""

from eblvm.engine.methods.base import Method
from eblvm.engine.methods.estimates import Estimator
from eblvm.engine.methods.losses import KINDS as LOSSES
from eblvm.engine.methods.score_matching import products
from eblvm.engine.options import Kinds, discovered

ESTIMATORS = discovered(__name__, __path__, Estimator)
OTHERS = discovered(__name__, __path__, Method)
KINDS: Kinds[Method] = Kinds(lambda: [*products(ESTIMATORS, LOSSES), *OTHERS.values()])
