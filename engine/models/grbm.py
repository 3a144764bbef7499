"""The Gaussian RBM as an option of a run."""

from __future__ import annotations

from eblvm.engine import nets
from eblvm.engine.models.base import Model
from eblvm.engine.options import option


class Grbm(Model):
    kind = "grbm"
    continuous_h = False
    linear_in_h = exact_kl = conditionals = True

    latent: int = option(4, "H, the number of latent units", low=1)  # type: ignore[misc]
    fixed_sigma: float | None = option(None, "hold sigma at this value; none: it starts at 1 and is learned", above=0)
    precision: str = option("fp32", "tf32 lets CUDA round the factors of products", choices=("fp32", "tf32"))  # type: ignore[misc]

    def energy(self, shape: tuple[int, ...], learns_q: bool) -> nets.GRBM:
        return nets.GRBM(shape[0], self.latent, self.fixed_sigma)
