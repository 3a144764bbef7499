"""Figures of an evaluation: a number, or a sentence that says why there is none."""

import math
import statistics
from collections.abc import Mapping, Sequence

Figure = float | str
Figures = dict[str, Figure]
UNKNOWN = "not known: "


def not_known(reason: str) -> str:
    return UNKNOWN + reason


def checked(figures: Mapping[str, Figure]) -> Figures:
    """A figure that is NaN or infinite is not known: it is never among numbers."""
    return {
        name: not_known(f"it came out as {value}") if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures.items()
    }


def mean(values: Sequence[Figure]) -> Figure:
    """Over replicas; not known where it is not known of one, as the others alone would be a choice."""
    missing = [v for v in values if isinstance(v, str)]
    if not missing:
        return statistics.fmean(v for v in values if not isinstance(v, str))
    if len(values) == 1:
        return missing[0]
    return not_known(f"{len(missing)} of {len(values)} replicas: {missing[0].removeprefix(UNKNOWN)}")


def deviation(values: Sequence[Figure]) -> float:
    """Over replicas; 0 of one, and where there is no mean."""
    numbers = [v for v in values if not isinstance(v, str)]
    return statistics.stdev(numbers) if len(numbers) == len(values) > 1 else 0.0


def shown(value: Figure, digits: int = 4) -> str:
    return value if isinstance(value, str) else f"{value:.{digits}f}"
