"""log Z between a lower and an upper bound, or why it is not known.

AIS forth is a lower bound whatever its chains have missed; AIS back is an upper bound only from samples of the model.
So the bracket is given where chains from several starts agree and the bounds are in order.
"""

import math
from typing import NamedTuple

from eblvm.engine.evaluation.metrics.likelihood import LogZ
from eblvm.engine.sampling.mixing import Mixing

SURE = 6.0  # nats: two true bounds are this far in the wrong order with a probability below 2 %


class Bracket(NamedTuple):
    lower: LogZ
    upper: LogZ | None
    reason: str | None  # why log Z is not known


def bracket(forth: LogZ, mode: float, back: LogZ | None, mixing: Mixing) -> Bracket:
    """From AIS forth and back, the bound of a single mode, and the mixing of the chains that AIS back started from."""
    lower = forth if forth.value >= mode else LogZ(mode, 0.0)
    if not math.isfinite(lower.value):
        return Bracket(lower, None, f"AIS gave {lower.value}; the model's parameters are too large for its chains")
    if mixing.problem is not None:
        return Bracket(lower, None, mixing.problem)
    if back is None or not math.isfinite(back.value):
        return Bracket(lower, None, "reverse AIS gave no finite value")
    errors = 4 * math.hypot(lower.standard_error, back.standard_error)
    if lower.value - back.value > min(SURE, 0.1 + errors):
        return Bracket(
            lower,
            None,
            f"reverse AIS gives {back.value:.6g}, which is no upper bound, since {lower.value:.6g} is a lower one; its "
            "chains do not start in the dominant mode",
        )
    return Bracket(lower, back, None)
