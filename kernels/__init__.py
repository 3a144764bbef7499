"""Kernel ops: each has a reference (the specification) and faster backends with the same name and signature.

`backends()` says which backend is used on which device, and why the others are not.
"""

from eblvm.kernels import (
    adam_unroll,
    bernoulli_lower,
    elu_of_sum,
    elu_second_order,
    fisher_step,
    gibbs,
    grbm,
    grbm_bilevel,
    grbm_dsm,
    philox,
    sliced_hvp,
)
from eblvm.kernels.runtime.dispatch import Backend

__all__ = [
    "Backend",
    "adam_unroll",
    "backends",
    "bernoulli_lower",
    "elu_of_sum",
    "elu_second_order",
    "fisher_step",
    "gibbs",
    "grbm",
    "grbm_bilevel",
    "grbm_dsm",
    "philox",
    "sliced_hvp",
]
OPS = (
    philox,
    bernoulli_lower,
    adam_unroll,
    grbm_bilevel,
    gibbs,
    elu_second_order,
    elu_of_sum,
    fisher_step,
    grbm,
    grbm_dsm,
    sliced_hvp,
)


def backends() -> list[Backend]:
    """One row for each op, device and candidate backend, in the order of preference. `eblvm doctor` prints them."""
    return [row for op in OPS for row in op.backends()]
