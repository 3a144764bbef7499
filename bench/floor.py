"""The matrix products of the engine's own algorithm, timed alone: what a step could not be faster than.

v_BD is the (noisy) batch, W_DH the model's weight, A_HD the posterior's, h_BH stands for anything of that shape.

Real lower step, each of K:  x = v W (once a minibatch if the noise is shared), l = v A^T, dA = h^T v.
Unrolled step, each of N:    the same three forward; backward: the cotangent of dA goes to l by one v A^T, then those
                             of l and x give A's (not in the first step, whose phi is no function of theta) and W's
                             (once a minibatch if shared).
Upper level:                 x = v W, l = v A^T, the score's two pulls h W^T and h A; backward: W's from the score, and
                             with an unroll also h's by g W and g A^T, and A's twice: from the score and from l.
DSM:                         x = v W, s = h W^T; backward g W, and W's twice: from the score and from x.

The engine computes l of the upper level twice, for h and for log q, and with an unroll A's cotangent of it twice: one
or two products that the algorithm does not need, so they are not in the floor.
"""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from eblvm.bench.registry import Case

PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "v W": lambda v, W, A, h: v @ W,
    "v A^T": lambda v, W, A, h: v @ A.mT,
    "h^T v": lambda v, W, A, h: h.mT @ v,
    "v^T h": lambda v, W, A, h: v.mT @ h,
    "h W^T": lambda v, W, A, h: h @ W.mT,
    "h A": lambda v, W, A, h: h @ A,
}


def products(case: Case) -> Counter[str]:
    """How often a step computes each product."""
    c = case.config
    if c.method == "dsm":
        return Counter({"v W": 2, "h W^T": 1, "v^T h": 2})
    if c.method != "bidsm" or c.posterior != "linear":
        raise ValueError(f"no floor is written down for {case.name}")
    N, K, shared = c.N, c.K, c.noise == "shared"
    count = Counter({"v W": 1, "v A^T": 1, "h W^T": 1, "h A": 1, "v^T h": 1})  # upper level
    count += Counter({"v A^T": K, "h^T v": K, "v W": 0 if shared else K})  # real steps
    if N:
        count += Counter({"v W": 1, "v A^T": 1, "h^T v": 2})  # upper level, backward into phi_N
        count += Counter({"v A^T": N, "h^T v": N, "v W": 0 if shared else N})  # unrolled steps, forward
        count += Counter({"v A^T": N, "h^T v": N - 1, "v^T h": 1 if shared else N})  # and backward
    return count


class FloorStep:
    """All products of a step, on operands of the case's sizes."""

    def __init__(self, case: Case):
        c = case.config
        lead = (c.replicas,) if c.replicated else ()
        B, D, H = c.batch, case.visible, c.latent
        place = {"dtype": getattr(torch, c.dtype), "device": c.device}
        shapes = ((B, D), (D, H), (H, D), (B, H))
        self.operands: tuple[Tensor, ...] = tuple(torch.rand(*lead, *shape, **place) for shape in shapes)
        self.products = [PRODUCTS[name] for name, times in products(case).items() for _ in range(times)]

    @torch.no_grad()
    def __call__(self) -> None:
        for product in self.products:
            product(*self.operands)
