"""The models that a run can train, one a file: a new model is a new file here, and its modules one in `nets`."""

from eblvm.engine.models.base import Model
from eblvm.engine.options import discovered

KINDS = discovered(__name__, __path__, Model)
