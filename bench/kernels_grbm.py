"""Part of suite `kernels`: the GRBM ops against torch's autograd of their reference, at Frey face's sizes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.agreement import AgreementError
from eblvm.bench.contestants import Contest
from eblvm.kernels import backends, philox
from eblvm.kernels.grbm import grbm
from eblvm.kernels.grbm import reference as grbm_reference
from eblvm.kernels.grbm_dsm import grbm_dsm
from eblvm.kernels.philox import Key
from eblvm.kernels.sliced_hvp import reference as sliced_reference
from eblvm.kernels.sliced_hvp import sliced_hvp

B, D, H, SIGMA = 100, 560, 400, 0.3
TOLERANCE = 1e-4  # of the largest entry, in float32

Results = Callable[[], Sequence[Tensor]]


def contests() -> list[Contest]:
    """Value and first order of `grbm` with h and without and of `sliced_hvp` with M directions; `grbm_dsm`."""
    v, eps, h = normal(0, B, D), normal(1, B, D), normal(2, B, H).sigmoid()
    theta = (0.05 * normal(3, D, H), normal(4, 1, D)[0], normal(5, 1, H)[0], 0.1 * normal(6, 1, D)[0])
    found = []
    for label, given in (("h=given", h), ("h=none", None)):
        cotangents = (normal(7, 1, B)[0], eps)
        fused, plain = (
            lambda *t, f=f, given=given: f(v, *t, given)[:2] for f in (grbm, grbm_reference.value)
        )  # fmt: skip
        found += both_orders("grbm", label, fused, plain, theta, cotangents)
    found.append(
        contest(
            "grbm_dsm", "order=first", lambda: flat(grbm_dsm(v, eps, *theta, SIGMA)), dsm_by_autograd(v, eps, theta)
        )
    )
    for M in (1, 4):
        u = normal(8, M * B, D).view(M, B, D)
        cotangents = (normal(7, 1, B)[0], normal(9, M, B))
        fused, plain = (lambda *t, f=f, u=u: f(v, u, *t)[:2] for f in (sliced_hvp, sliced_reference.value))
        found += both_orders("sliced_hvp", f"M={M}", fused, plain, theta, cotangents)
    return found


def both_orders(
    op: str,
    label: str,
    fused: Callable[..., Any],
    plain: Callable[..., Any],
    theta: Sequence[Tensor],
    cotangents: Sequence[Tensor],
) -> list[Contest]:
    leaves = [p.clone().requires_grad_() for p in theta]

    def value(f: Callable[..., Any]) -> Results:
        return lambda: f(*theta)

    def first(f: Callable[..., Any]) -> Results:
        return lambda: torch.autograd.grad(f(*leaves), leaves, cotangents)

    return [
        contest(op, f"{label} order=value", value(fused), value(plain)),
        contest(op, f"{label} order=first", first(fused), first(plain)),
    ]


def dsm_by_autograd(v: Tensor, eps: Tensor, theta: Sequence[Tensor]) -> Results:
    leaves = [p.clone().requires_grad_() for p in theta]

    def results() -> list[Tensor]:
        _, score, _ = grbm_reference.value(v + SIGMA * eps, *leaves, None)
        loss = 0.5 * (score + eps / SIGMA).square().sum(-1).mean()
        return [loss.detach(), *torch.autograd.grad(loss, leaves)]

    return results


def contest(op: str, label: str, fused: Results, plain: Results) -> Contest:
    """The case made ready; `AgreementError` if the two do not give the same."""
    serving = next(b.name for b in backends() if b.op == op and b.device == "cpu" and b.serves)
    for got, expected in zip(fused(), plain(), strict=True):
        if not float((got - expected).abs().max()) <= TOLERANCE * float(expected.abs().max()):
            raise AgreementError(f"{op} {label}: {serving} and reference differ; no speed is reported")

    name = f"op={op} {label} backend={serving} B={B} D={D} H={H}"
    return Contest(name, lambda: discard(fused), list, True, lambda: discard(plain), list, None)


def discard(results: Results) -> None:
    results()


def flat(result: tuple[Tensor, Sequence[Tensor]]) -> list[Tensor]:
    loss, gradients = result
    return [loss, *gradients]


def normal(purpose: int, *shape: int) -> Tensor:
    return philox.normal(Key(7, 3), purpose, shape[0], shape[1:])
