"""Adam by NVIDIA apex, the kernel of its FusedAdam: one launch for all parameters of theta. CUDA only."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.base import Weights, averaged
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Apex(Adam):
    """Adam whose steps in place are apex's. It has no eps_root, which is below fp32's resolution."""

    def move(
        self, weights: Weights, gradient: Params, lr: Tensor, *, in_place: bool = False, go: Tensor | None = None
    ) -> tuple[Weights, Tensor]:
        """As `Adam.move`; in place the host reads no number, so that it can launch the next step meanwhile."""
        if not in_place:
            return super().move(weights, gradient, lr, go=go)
        gradient, norm = self.clipped(gradient, lr.dim())
        self._launch(weights, self.decayed(weights.params, gradient), lr, go)
        count = weights.moments.step_count + (1 if go is None else go)
        weights = weights._replace(moments=weights.moments._replace(step_count=count))
        if self.average is None:
            return weights, norm
        decay = self.average if go is None else torch.where(go, self.average, 1.0)
        return averaged(weights, decay, in_place), norm

    def _launch(self, weights: Weights, gradient: Params, lr: Tensor, go: Tensor | None) -> None:
        """Adam in the place of the parameters, m and v, unless `go` is false."""
        import amp_C
        from apex.multi_tensor_apply import multi_tensor_applier

        theta, (m, v, step_count), _ = weights
        # It walks through memory: a gradient in another order than its parameter would move the wrong elements.
        lists = [[in_order_of(tree[k], theta[k]) for k in theta] for tree in (gradient, theta, m, v)]
        # It takes no step where this number, which it calls an overflow, is 1.
        stop = torch.zeros((), dtype=torch.int32, device=lr.device) if go is None else (~go).to(torch.int32)
        plain_adam, correct_bias, weight_decay, inverse_scale = 0, 1, 0.0, torch.ones_like(lr)
        b1, b2, eps, _ = self.rule
        constants = (b1, b2, eps, (step_count + 1).to(torch.int32), plain_adam, correct_bias, weight_decay)
        with torch.no_grad():
            multi_tensor_applier(amp_C.multi_tensor_adam_capturable, stop, lists, lr, *constants, inverse_scale)


def require() -> None:
    if not available():
        raise UserError(
            "optimizer 'apex' needs NVIDIA apex with its CUDA extensions, which is not installed here; use 'adam', "
            "whose step is fused as well"
        )
    import amp_C

    if not hasattr(amp_C, "multi_tensor_adam_capturable"):
        raise UserError(
            "optimizer 'apex' needs the Adam of apex that reads its learning rate on the GPU, which the installed one "
            "does not have; build a newer one, or use 'adam'"
        )


def available() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("apex", "amp_C"))


def in_order_of(x: Tensor, place: Tensor) -> Tensor:
    """Return x with the strides of `place`: itself, or a copy (moments have their parameter's from the start)."""
    return x if x.stride() == place.stride() else torch.empty_like(place).copy_(x)
