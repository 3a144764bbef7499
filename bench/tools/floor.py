"""The matrix products of the engine's own algorithm, timed alone: a lower bound of a step's time.

v_BD is the (noisy) batch, W_DH the model's weight, A_HD the posterior's, h_BH and M_BB are any matrices of their
shape. The fused step (`kernels/grbm_bilevel`):

Lower steps:    x = v W, one a batch. Each of K real steps: l = v A^T, dA = h^T v.
Unrolled steps: forward as a real step; backward: the cotangent of dA goes to l by one v A^T, then those of l and x
                give A's (not in the first step, whose phi is no function of theta) and W's (one a batch).
In the dual:    M = v v^T once, then one M h a step and direction instead; A_N meets the upper level through h h^T, M v,
                r v^T and two more M h.
Upper level:    l = v A^T, the score's two pulls h W^T and h A; backward: W's from the score, and with an unroll also
                h's by r W and r A^T, and (not in the dual) A's twice: from the score and from l.

The step by autograd computes x = v W of the upper level as well, unless the batch is shared, and has no dual. It
computes l of the upper level twice, for h and for log q, and with an unroll A's cotangent of it twice: one or two
products that the algorithm does not need, so they are not in the floor.
DSM: x = v W, s = h W^T; backward g W, and W's twice: from the score and from x.
"""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from eblvm.bench.tools.registry import Case

PRODUCTS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "v W": lambda v, W, A, h, M: v @ W,
    "v A^T": lambda v, W, A, h, M: v @ A.mT,
    "h^T v": lambda v, W, A, h, M: h.mT @ v,
    "v^T h": lambda v, W, A, h, M: v.mT @ h,
    "h W^T": lambda v, W, A, h, M: h @ W.mT,
    "h A": lambda v, W, A, h, M: h @ A,
    "v v^T": lambda v, W, A, h, M: v @ v.mT,
    "h h^T": lambda v, W, A, h, M: h @ h.mT,
    "M h": lambda v, W, A, h, M: M @ h,
    "M v": lambda v, W, A, h, M: M @ v,
}


def products(case: Case) -> Counter[str]:
    """The number of times that a step computes each product."""
    c = case.config
    if c["method"] == "dsm":
        return Counter({"v W": 2, "h W^T": 1, "v^T h": 2})
    if c["method"] != "bidsm" or c["posterior"] != "linear":
        raise ValueError(f"no floor is written down for {case.name}")
    N, K, shared = c["N"], c["K"], c["noise"] == "shared"
    fused = c.step.fused and not c["compile"] and c["unroll_memory"] == "store"
    count = Counter({"v A^T": 1, "h W^T": 1, "h A": 1, "v^T h": 1})  # upper level
    count["v W"] = 1 if shared else K + N + (not fused)
    count += Counter({"v A^T": K, "h^T v": K})  # real steps
    if N == 0:
        return count
    count += Counter({"v W": 1, "v A^T": 1, "v^T h": 1 if shared else N})  # upper level backward, W from the unroll
    if fused and shared and c["unroll_optimizer"] == "sgd" and c["batch"] < 2 * case.visible:
        return count + Counter({"v v^T": 2, "M h": 2 * N + 2, "h h^T": 1, "M v": 1})
    return count + Counter({"v A^T": 2 * N, "h^T v": 2 + N + N - 1})


class FloorStep:
    """All products of a step, on operands of the case's sizes."""

    def __init__(self, case: Case):
        c = case.config
        lead = (c["replicas"],) if c.replicated else ()
        B, D, H = c["batch"], case.visible, c["latent"]
        kwargs = {"dtype": getattr(torch, c["dtype"]), "device": c["device"]}
        shapes = ((B, D), (D, H), (H, D), (B, H), (B, B))
        self.operands: tuple[Tensor, ...] = tuple(torch.rand(*lead, *shape, **kwargs) for shape in shapes)
        self.products = [PRODUCTS[name] for name, times in products(case).items() for _ in range(times)]

    @torch.no_grad()
    def __call__(self) -> None:
        for product in self.products:
            product(*self.operands)
