"""Training methods: the products of estimators and losses, and methods of their own, each in one file.

A new file here, or a new loss in `losses/`, is found by the registries of this file.
"""

from collections.abc import Iterator

from eblvm.engine.methods.base import Estimator, Method
from eblvm.engine.methods.losses import KINDS as LOSSES
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.options import Kinds, discovered

ESTIMATORS = discovered(__name__, __path__, Estimator)
OTHERS = discovered(__name__, __path__, Method)


def _all() -> Iterator[Method]:
    """Yield every loss with every estimator that it can be a function of, then the other methods."""
    for estimator in ESTIMATORS.values():
        yield from (ScoreMatching(estimator, loss) for loss in LOSSES.values() if estimator.kind in loss.estimators)
    yield from OTHERS.values()


KINDS = Kinds(_all)
