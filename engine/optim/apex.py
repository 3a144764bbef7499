"""theta's real Adam step by NVIDIA apex, the kernel of its FusedAdam: one launch for all parameters. CUDA only."""

import importlib.util

import torch

from eblvm.engine.errors import UserError
from eblvm.engine.types import Params
from eblvm.kernels.adam_unroll import Rule


def available() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("apex", "amp_C"))


def require() -> None:
    if not available():
        raise UserError(
            "optimizer 'apex' needs NVIDIA apex with its CUDA extensions, which is not installed here; use 'adam', "
            "whose step is fused as well"
        )


def in_order_of(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """x with the strides of `place`: itself, or a copy (moments have their parameter's from the start)."""
    return x if x.stride() == place.stride() else torch.empty_like(place).copy_(x)


@torch.no_grad()
def apex_adam_(
    theta: Params, gradient: Params, m: Params, v: Params, t: torch.Tensor, lr: torch.Tensor, rule: Rule
) -> None:
    """Adam in the place of theta, m and v; apex has no eps_root, which is below fp32's resolution."""
    import amp_C
    from apex.multi_tensor_apply import multi_tensor_applier

    # It walks through memory: a gradient in another order than its parameter would move the wrong elements.
    lists = [[in_order_of(tree[k], theta[k]) for k in theta] for tree in (gradient, theta, m, v)]
    overflow = torch.zeros(1, dtype=torch.int, device=lr.device)
    plain_adam, correct_bias, weight_decay = 0, 1, 0.0
    constants = (float(lr), rule.b1, rule.b2, rule.eps, int(t), plain_adam, correct_bias, weight_decay)
    multi_tensor_applier(amp_C.multi_tensor_adam, overflow, lists, *constants)
