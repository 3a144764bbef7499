"""The training methods that a run can choose, one a file. A new method is a new file here, or a new loss or estimator;
`KINDS` finds it."""

from __future__ import annotations

from eblvm.engine.methods.kinds.score_matching import products
from eblvm.engine.methods.method import Method
from eblvm.engine.options import discovered

# Every method by name: the products of estimators and losses, then the others.
KINDS = products() | discovered(__name__, __path__, Method)
