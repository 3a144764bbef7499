"""A model of the user's own, given in Python."""

from __future__ import annotations

from eblvm.engine import nets
from eblvm.engine.errors import UserError
from eblvm.engine.models.base import Model
from eblvm.engine.options import option


class Custom(Model):
    kind = "custom"
    linear_in_h = exact_kl = conditionals = given_posterior = True
    own_posterior = False

    model_name: str = option("", "name of a model given in Python; a run continues only with the model of that name")
    precision: str = option("fp32", "tf32 lets CUDA round the factors of products", choices=("fp32", "tf32"))  # type: ignore[misc]

    def energy(self, shape: tuple[int, ...], learns_q: bool) -> nets.Energy:
        raise UserError("model 'custom' is an energy of your own, given in Python: see docs/models.md")
