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
        if not in_place:
            return super().move(weights, gradient, lr, go=go)
        gradient, norm = self.clipped(gradient, lr.dim())
        if go is not None and not go:
            return weights, norm
        moments = weights.moments._replace(step_count=weights.moments.step_count + 1)
        weights = weights._replace(moments=moments)
        self._launch(weights, self.decayed(weights.params, gradient), lr)
        return weights if self.average is None else averaged(weights, self.average, in_place), norm

    def _launch(self, weights: Weights, gradient: Params, lr: Tensor) -> None:
        """Adam in the place of the parameters, m and v."""
        import amp_C
        from apex.multi_tensor_apply import multi_tensor_applier

        theta, (m, v, step_count), _ = weights
        # It walks through memory: a gradient in another order than its parameter would move the wrong elements.
        lists = [[in_order_of(tree[k], theta[k]) for k in theta] for tree in (gradient, theta, m, v)]
        overflow = torch.zeros(1, dtype=torch.int, device=lr.device)
        plain_adam, correct_bias, weight_decay = 0, 1, 0.0
        b1, b2, eps, _ = self.rule
        constants = (float(lr), b1, b2, eps, int(step_count), plain_adam, correct_bias, weight_decay)
        with torch.no_grad():
            multi_tensor_applier(amp_C.multi_tensor_adam, overflow, lists, *constants)


def require() -> None:
    if not available():
        raise UserError(
            "optimizer 'apex' needs NVIDIA apex with its CUDA extensions, which is not installed here; use 'adam', "
            "whose step is fused as well"
        )


def available() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("apex", "amp_C"))


def in_order_of(x: Tensor, place: Tensor) -> Tensor:
    """Return x with the strides of `place`: itself, or a copy (moments have their parameter's from the start)."""
    return x if x.stride() == place.stride() else torch.empty_like(place).copy_(x)
