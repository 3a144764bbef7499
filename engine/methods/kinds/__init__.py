"""The training methods that a run can choose, one a file. A new method is a new file here, or a new loss or estimator;
`kinds` finds it."""

from __future__ import annotations

from functools import cache

from eblvm.engine.methods.kinds.score_matching import products
from eblvm.engine.methods.method import Method
from eblvm.engine.options import discovered


@cache
def kinds() -> dict[str, Method]:
    """Every method by name: the products of estimators and losses, then the others."""
    return products() | {m.kind: m for m in discovered(__name__, __path__, Method)}
