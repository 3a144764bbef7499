"""Kernel ops of the engine: each has a reference (the specification) and faster backends with the same name and signature.

`backends()` says which backend serves which device, and why the others do not.
"""

from eblvm.kernels import philox
from eblvm.kernels.dispatch import Backend

__all__ = ["Backend", "backends", "philox"]


def backends() -> list[Backend]:
    """One row for each op, device and candidate backend, in the order of preference. `eblvm doctor` prints them."""
    return [*philox.backends()]
