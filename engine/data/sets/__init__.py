"""The data sets that a recipe can name, one a file: a new data set is a new file here."""

from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.options import discovered

KINDS = discovered(__name__, __path__, DataOptions)
