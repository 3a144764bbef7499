"""How theta's gradient sees q's answer to it, the best response of the lower level: options of bi-level methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from eblvm.engine.options import Options, by_kind, option


@dataclass(frozen=True)
class Response(Options):
    group = "method"
    unrolls: ClassVar[bool] = False


@dataclass(frozen=True)
class Unroll(Response):
    """Through N unrolled steps on q's weights (Bao et al. 2020)."""

    kind = "unroll"
    unrolls = True


@dataclass(frozen=True)
class Newton(Response):
    """By a Newton step on q's outputs: N = infinity through the head alone, see docs/newton.md.

    Steps and curvatures are measured in the units of q: a mean in its std, a log std in 1/sqrt(2), so that q's own
    Fisher information is the identity and no option depends on the scale of h."""

    kind = "newton"

    response_samples: int = option(
        8, "S, samples of h in the step, an even number; a head with closed expectations needs none", low=2
    )
    response_block: str = option(
        "mean", "outputs of q that move: means, or means and log stds", choices=("mean", "full")
    )
    response_score: str = option(
        "mean",
        "the score as a mean over q, at one h as BiSM has it, or at h and its mirror image",
        choices=("mean", "single", "pairs"),
    )
    response_steps: int = option(1, "steps in value alone, before the one that carries derivatives", low=0)
    floor: float = option(0.1, "least curvature; smaller ones are raised to it", above=0)
    trust: float = option(2.0, "longest step, root mean square over the outputs; a longer one is cut", above=0)
    solver: str = option("dense", "make the Hessian, or use its products only", choices=("dense", "cg"))
    cg_iterations: int = option(32, "of the cg solver", low=1)


KINDS = by_kind((Unroll(), Newton()))
