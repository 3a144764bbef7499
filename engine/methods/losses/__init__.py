"""Score matching losses, one a file: a function of a score estimate at (perturbed) data, with its options.

`KINDS` finds the files; every estimator that a loss names becomes a method with it.
"""

from eblvm.engine.methods.estimates import Loss
from eblvm.engine.options import discovered

KINDS = discovered(__name__, __path__, Loss)
