"""Models that do not fit: refused before anything is allocated, or explained when memory runs out."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.device import device_memory
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Nets
from eblvm.engine.planning import plan

COPIES = 4  # at least: parameters, Adam's two moments, a gradient
UNCOUNTABLE = ("overflow", "too large", "Storage size", "numel", "int64")  # how torch says that no index is enough


@contextmanager
def explained(config: Config, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn torch's errors about sizes and memory into ones that say which setting needs less."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        said = str(error).partition("\n")[0]
        if isinstance(error, RuntimeError) and plan.out_of_memory(error):
            advice = plan.next_smaller(config, shape, collectives.size())
            raise UserError(f"out of memory: {advice}") from error
        if not any(word in str(error) for word in UNCOUNTABLE):
            raise
        raise UserError(
            f"a layer of this model has too many parameters to count ({said[:80]}); use smaller --width, --latent and "
            "the like"
        ) from None


def check_memory(config: Config, nets: Nets) -> None:
    """Refuse parameters that with their gradient and moments take more than the memory, for all replicas."""
    replicas = config.optimisation.replicas * len(config.optimisation.lr)
    count = sum(math.prod(p.shape) for net in (nets.energy, nets.posterior, nets.generator) for p in net.parameters())
    each = 8 if config.running.dtype == "float64" else 4
    needed, limit = count * replicas * each * COPIES, device_memory(config.running.device)
    if needed > limit:
        of = f" x {replicas} replicas" if replicas > 1 else ""
        raise UserError(
            f"this model has {count:,} parameters{of}, which take {_gib(needed)} with gradient and moments; the limit "
            f"is the {_gib(limit)} of {config.running.device}: use a smaller --width or --latent, or fewer replicas"
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"
