"""The cases: every Triton kernel at odd sizes, in every order, type and precision, against its op's reference."""

import itertools

from tests.emulator.kernels import pointwise, products
from tests.emulator.kernels.case import Case


def cases() -> dict[str, Case]:
    every = itertools.chain(products.cases(), products.rates(), pointwise.cases())
    return {f"{case.part}: {case.name}, cc {case.capability}": case for case in every}


def bounded() -> list[str]:
    """Return the names of a selection that takes a minute: every part, and as many of the rest as there are."""
    by_part: dict[str, list[str]] = {}
    for name, case in cases().items():
        by_part.setdefault(case.part, []).append(name)
    return [names[(7 * k + 3) % len(names)] for k, names in enumerate(by_part.values())]
