"""The mixing of a run's sampler: its own chains beside those from other starts."""

from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.runs.run import SavedRun
from eblvm.engine.sampling.annealing import annealed
from eblvm.engine.sampling.gibbs import uniform_start
from eblvm.engine.sampling.mixing import Mixing, mixing, several_starts
from eblvm.engine.sampling.run_samples import GIBBS_SWEEPS
from eblvm.kernels.philox import Key

CHAINS = 32  # from each start
TEMPERATURES = 500  # of the annealed and the tempered ones
MIXING_SEED = 2**43  # added to the samples': these chains are others


def run_mixing(run: SavedRun, model: str, sweeps: int | None, seed: int) -> Mixing | None:
    """Of Gibbs sampling of a GRBM's first replica; None where samples come from a generator, or from annealed
    Langevin dynamics, which ends at temperature 0 and so has no distribution that its chains could keep."""
    if run.config.model.generates or not isinstance(run.energy, GRBM):
        return None
    theta, key = run.thetas(model)[0], Key((seed + MIXING_SEED) % 2**63, 0)
    ends = annealed(theta, key, CHAINS, TEMPERATURES)
    starts = {"noise": uniform_start(key, CHAINS, run.dataset.train)}
    starts |= several_starts(theta, run.dataset.train, ends, key, CHAINS, TEMPERATURES)
    return mixing(run.energy, theta, starts, key, GIBBS_SWEEPS if sweeps is None else sweeps)
