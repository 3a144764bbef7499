"""A lower step's gradient by hand, for the Fisher divergence, a Gaussian q and the coupled head: few launches on a GPU.

With h = mean + std eps, y = U h + W1 f + b, U = W1 + W2 and E = |elu(y)|^2,

    r = grad_h log q + grad_h E = 2 U^T (elu elu')(y) - eps / std,    d = 1/2 |r|^2.

grad_h log q is -eps/std on the sample itself, for every q. Against r_bar = weight r / B

    y_bar = 2 (elu'^2 + elu elu'')(y) U r_bar,    h_bar = U^T y_bar,
    mean_bar = h_bar,    log_std_bar = eps (std h_bar + r_bar / std),

and (elu'^2 + elu elu'')(y) = (n + 1)(2n + 1) with n = min(elu(y), 0). The step by autograd (lower_level.py) is the
specification. It runs on the CPU, where a launch costs nothing and whose bits are published.
Shape tags: S samples of h, B batch, H latent units, E width of the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from eblvm.engine import autodiff
from eblvm.engine import nets as modules
from eblvm.engine.autodiff import derivatives
from eblvm.engine.methods.base import Nets, Rates
from eblvm.engine.methods.estimates import Batch
from eblvm.engine.nets import deep
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.methods.lower_level import Divergence
    from eblvm.engine.nets import Gaussian, Posterior


def serves(divergence: Divergence, nets: Nets, f: Any) -> bool:
    """Is this lower level of the form, outside of torch.func?"""
    energy, alone = nets.energy, isinstance(f, torch.Tensor) and not derivatives.inside_torch_func()
    if not alone or divergence.kind != "fisher" or not isinstance(nets.posterior, modules.Gaussian):
        return False
    return isinstance(energy, modules.Separable) and type(energy.head_net) is deep.CoupledHead


class CoupledAt(NamedTuple):
    """The head at fixed features: y = base + U h."""

    base: Tensor  # [B, E]
    U: Tensor  # [E, H]
    doubled: Tensor  # 2 U


def head_of(theta: Params, f_BH: Tensor) -> CoupledAt:
    W, b_E = theta["head_net.linear.weight"], theta["head_net.linear.bias"]
    of_sum_EH, of_h_EH = W.chunk(2, -1)
    U_EH = of_sum_EH + of_h_EH
    return CoupledAt(torch.addmm(b_E, f_BH, of_sum_EH.T), U_EH, 2 * U_EH)


def gradient(
    head: CoupledAt, posterior: Posterior, phi: Params, batch: Batch, noise_SBH: Tensor, rates: Rates
) -> tuple[Params, Tensor]:
    """Return the gradient of mean_B weight d for phi, and r [S, B, H], without a graph; rates have fp16's scale."""
    scale = rates.get("scale")
    base_BE, U_EH, twice_U_EH = head
    S, B, H = noise_SBH.shape
    gaussian = cast("Gaussian", posterior)
    out_B2H, pull = autodiff.vjp(lambda p: gaussian.at(p).outputs(batch.v), phi)
    mean_BH, log_std_BH = out_B2H.detach().chunk(2, -1)
    std_BH = torch.exp(log_std_BH)
    h_SBH = torch.addcmul(mean_BH, std_BH, noise_SBH)
    rows = base_BE.expand(S, *base_BE.shape).flatten(0, 1)
    elu_E = torch.nn.functional.elu(torch.addmm(rows, h_SBH.flatten(0, 1), U_EH.T))  # [S B, E]
    below_E = elu_E.clamp(max=0)
    slope_E = below_E + 1
    energy_slope = torch.mm(elu_E * slope_E, twice_U_EH).view(S, B, H)
    r_SBH = torch.addcdiv(energy_slope, noise_SBH, std_BH, value=-1)
    r_bar_SBH = r_SBH * (batch.lower_weight / (S * B)).view(-1, 1)
    y_bar_E = torch.mm(r_bar_SBH.flatten(0, 1), twice_U_EH.T) * torch.addcmul(slope_E, slope_E, below_E, value=2)
    h_bar_SBH = torch.mm(y_bar_E, U_EH).view(S, B, H)
    log_std_bar_SBH = torch.addcmul(r_bar_SBH / std_BH, h_bar_SBH, std_BH) * noise_SBH
    bar_B2H = torch.cat([h_bar_SBH, log_std_bar_SBH], -1)
    bar_B2H = bar_B2H[0] if S == 1 else bar_B2H.sum(0)
    gradient = pull(bar_B2H if scale is None else bar_B2H * scale)
    return gradient if scale is None else autodiff.tree_map(lambda g: g / scale, gradient), r_SBH
