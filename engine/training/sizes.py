"""Models that cannot fit in memory, refused before anything is allocated: parameters are counted on the meta device."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.machine import device_memory
from eblvm.engine.methods.base import Nets

COPIES = 4  # at least: parameters, Adam's two moments, a gradient


@contextmanager
def countable() -> Iterator[None]:
    """Around the building of models: sizes whose product no index can count are a mistake of the user's."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        said = str(error)
        if not any(word in said for word in ("overflow", "too large", "Storage size", "numel", "int64")):
            raise
        raise UserError(
            f"a layer of this model has too many parameters to count ({said.partition(chr(10))[0][:80]}); use smaller "
            "--width, --latent and the like"
        ) from None


def check_memory(config: Config, nets: Nets) -> None:
    """Refuse parameters that with their gradient and moments take more than the memory, for all replicas."""
    replicas = config.optimisation.count
    count = sum(math.prod(p.shape) for net in nets.all() for p in net.parameters())
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
