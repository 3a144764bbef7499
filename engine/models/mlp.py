"""The EBLVM of points, made of MLPs, as an option of a run."""

from __future__ import annotations

from eblvm.engine.models.base import Model
from eblvm.engine.nets import mlp as modules
from eblvm.engine.options import option


class Mlp(Model):
    kind = "mlp"
    points = needs_q = True

    latent: int = option(2, "H, the number of latent units", low=1)  # type: ignore[misc]
    width: int = option(64, "units of the energy's hidden layers", low=1)
    depth: int = option(3, "hidden layers of the energy", low=1, high=100)
    head_width: int = option(64, "units of the squared norm", low=1)
    data_mean: float = option(0.0, "of the data, which the networks see centred and scaled")  # type: ignore[misc]
    data_std: float = option(1.0, "of the data", above=0)  # type: ignore[misc]

    def energy(self, shape: tuple[int, ...], learns_q: bool) -> modules.MlpEnergy:
        sizes = (self.latent, self.width, self.depth, self.head_width)
        return modules.MlpEnergy(shape[0], *sizes, self.data_mean, self.data_std)
