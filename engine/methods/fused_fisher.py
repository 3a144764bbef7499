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
from eblvm.kernels import fisher_step

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
    """A batch as q's net reads it, and the head at its features: y = base + U h."""

    v: Tensor
    base: Tensor  # [B, E]
    U: Tensor  # [E, H]


def head_of(theta: Params, f_BH: Tensor, posterior: Posterior, v: Tensor) -> CoupledAt:
    W, b_E = theta["head_net.linear.weight"], theta["head_net.linear.bias"]
    of_sum_EH, of_h_EH = W.chunk(2, -1)
    U_EH = of_sum_EH + of_h_EH
    return CoupledAt(cast("Gaussian", posterior).as_read(v), torch.addmm(b_E, f_BH, of_sum_EH.T), U_EH)


def gradient(
    head: CoupledAt, posterior: Posterior, phi: Params, batch: Batch, noise_SBH: Tensor, rates: Rates
) -> tuple[Params, Tensor]:
    """Return the gradient of mean_B weight d for phi, and r [S, B, H], without a graph; rates have fp16's scale."""
    scale = rates.get("scale")
    v, base_BE, U_EH = head
    S = len(noise_SBH)
    gaussian, parts = cast("Gaussian", posterior), fisher_step.backend(noise_SBH)
    out_B2H, pull = autodiff.vjp(lambda p: gaussian.at(p).raw_outputs(v), phi)
    out = out_B2H.detach()
    h = parts.sample(out, noise_SBH)  # [S B, H]
    base = base_BE if S == 1 else base_BE.expand(S, *base_BE.shape).flatten(0, 1)
    y = torch.addmm(base, h, U_EH.T)  # [S B, E]
    r_SBH, r_bar_SBH = parts.residual(torch.mm(parts.slope(y), U_EH), out, noise_SBH, batch.lower_weight)
    y_bar = parts.curved(torch.mm(r_bar_SBH.flatten(0, 1), U_EH.T), y)
    gradient = pull(parts.outputs_bar(torch.mm(y_bar, U_EH), r_bar_SBH, out, noise_SBH, scale))
    return gradient if scale is None else autodiff.tree_map(lambda g: g / scale, gradient), r_SBH
