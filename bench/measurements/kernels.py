"""Suite `kernels`: each op of eblvm.kernels that has a faster backend, against its reference in eager torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.bench.contestants.steps import Contest
from eblvm.bench.measurements.kernels_grbm import grbm_rows
from eblvm.bench.tools.agreement import AgreementError
from eblvm.bench.tools.kernel_row import Row, Run, normal
from eblvm.engine.errors import UserError
from eblvm.kernels import adam_unroll, backends, bernoulli_lower, elu_second_order, gibbs, philox
from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.philox import Key
from eblvm.kernels.philox.reference import Kind
from eblvm.kernels.philox.reference import philox as reference_philox

TAU = 0.1


def rows() -> list[Row]:
    return [
        *philox_rows(),
        *bernoulli_lower_rows(),
        *adam_unroll_rows(),
        *gibbs_rows(),
        *elu_second_order_rows(),
        *grbm_rows(),
    ]


def contests(device: str = "cpu") -> list[Contest]:
    """Every row, after op and reference have given the same result."""
    place = torch.device(device).type
    serving = {b.op: b.name for b in backends() if b.device == place and b.serves}
    made = []
    for row in rows():
        if serving[row.op] == "reference":
            reasons = "; ".join(b.reason for b in backends() if (b.op, b.device, b.serves) == (row.op, place, False))
            raise UserError(
                f"suite 'kernels' needs a backend other than the reference; {row.op} has none here: {reasons}"
            )
        with torch.device(device):
            check(row)
            fast, plain = row.make(torch.float32)
        label = f"op={row.op} {row.labels} backend={serving[row.op]}"
        made.append(Contest(label, discarding(fast), list, True, discarding(plain), list, None))
    return made


def check(row: Row) -> None:
    fast, plain = row.make(torch.float64)
    for got, expected in zip(tree_leaves(fast()), tree_leaves(plain()), strict=True):
        error = float((got - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
        if not error <= row.tolerance:
            raise AgreementError(
                f"{row.op} {row.labels}: op and reference differ by {error:.1e}, expected at most {row.tolerance:.0e};"
                " no speed is reported"
            )


def discarding(run: Run) -> Callable[[], None]:
    def step() -> None:
        with torch.no_grad():
            run()

    return step


DRAWS: dict[str, Callable[..., Tensor]] = {
    "uniform": philox.uniform,
    "normal": philox.normal,
    "logistic": philox.logistic,
    "gumbel": philox.gumbel,
    "rademacher": philox.rademacher,
}


def philox_rows() -> list[Row]:
    """Every distribution at Frey face's batch, [100, 560], and normals at the toy's, [100, 2]; the same bits."""

    def made(name: str, width: int) -> Callable[[torch.dtype], tuple[Run, Run]]:
        def make(dtype: torch.dtype) -> tuple[Run, Run]:
            seed, kind, device = torch.tensor(7), int(Kind[name.upper()]), torch.get_default_device()
            return (
                lambda: DRAWS[name](Key(seed, 3), 5, 100, (width,), device=device),
                lambda: reference_philox(seed, 3, 5, 100, width, 0, kind),
            )

        return make

    pairs = [*((name, 560) for name in DRAWS), ("normal", 2)]
    return [Row("philox", f"kind={name} B=100 width={width}", made(name, width), 0.0) for name, width in pairs]


def bernoulli_lower_rows() -> list[Row]:
    """kl, its first and its second derivative at [100, 400]: noise given, drawn in the op, or the closed form."""

    def made(order: str, noise: str) -> Callable[[torch.dtype], tuple[Run, Run]]:
        def make(dtype: torch.dtype) -> tuple[Run, Run]:
            logits, x, u, w = (normal(i, 100, 400, dtype=dtype) for i in range(4))
            like: dict[str, Any] = {"dtype": dtype, "device": logits.device}
            cotangents = {"value": (), "first": (logits[:, 0],), "second": (logits[:, 0].clone(), u, w)}[order]
            given = philox.logistic(Key(7, 3), 5, 100, (400,), **like) if noise == "given" else None
            seed = torch.tensor(7) if noise == "drawn" else None
            arguments = (*cotangents, logits, x, given, seed, 3, 5, 0, TAU)
            fast, plain = bernoulli_lower.backend(logits), bernoulli_lower.Reference
            return lambda: getattr(fast, order)(*arguments), lambda: getattr(plain, order)(*arguments)

        return make

    return [
        Row("bernoulli_lower", f"order={order} noise={noise} B=100 H=400", made(order, noise))
        for order in ("value", "first", "second")
        for noise in ("given", "drawn", "exact")
    ]


def adam_unroll_rows() -> list[Row]:
    """The step and its reverse on Frey face's posterior, [400, 560]."""

    def made(name: str) -> Callable[[torch.dtype], tuple[Run, Run]]:
        def make(dtype: torch.dtype) -> tuple[Run, Run]:
            p, g, m, p_bar, m_bar, v_bar = (normal(i, 400, 560, dtype=dtype) for i in range(6))
            leading = (p,) if name == "step" else (p_bar, m_bar, v_bar)
            t, lr = torch.tensor(3.0, dtype=dtype), torch.tensor(0.01, dtype=dtype)
            arguments = (*leading, g, m, 0.1 + m.square(), t, lr, Rule())
            fast, plain = adam_unroll.backend(p), adam_unroll.reference
            return lambda: getattr(fast, name)(*arguments), lambda: getattr(plain, name)(*arguments)

        return make

    return [Row("adam_unroll", f"pass={name} H=400 D=560", made(name)) for name in ("step", "reverse")]


def gibbs_rows() -> list[Row]:
    """Ten sweeps that draw their own noise, at Frey face's and at the toy's sizes."""

    def made(B: int, D: int, H: int) -> Callable[[torch.dtype], tuple[Run, Run]]:
        def make(dtype: torch.dtype) -> tuple[Run, Run]:
            v, b, c = normal(0, B, D, dtype=dtype), normal(1, D, dtype=dtype), normal(2, H, dtype=dtype)
            W = normal(3, D, H, dtype=dtype) / D**0.5
            stream = gibbs.Stream(Key(7, 3), 5, 6)
            rest = ([], [], torch.tensor(7), 3, 5, 6, 0, 10)
            model = (W, b, c, torch.zeros_like(b))
            return lambda: gibbs.gibbs(v, *model, stream, 10), lambda: gibbs.reference.gibbs(v, *model, *rest)

        return make

    sizes = ((100, 560, 400), (100, 2, 4))
    return [Row("gibbs", f"sweeps=10 B={B} D={D} H={H}", made(B, D, H)) for B, D, H in sizes]


def elu_second_order_rows() -> list[Row]:
    """The activation and its two derivatives on [8, 64, 32, 32], in both memory orders."""

    def made(order: str, layout: str) -> Callable[[torch.dtype], tuple[Run, Run]]:
        def make(dtype: torch.dtype) -> tuple[Run, Run]:
            memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
            x, g, u = (normal(i, 8, 64, 32, 32, dtype=dtype).contiguous(memory_format=memory_format) for i in range(3))
            arguments = {"value": (x, 1.0), "first": (g, x, 1.0), "second": (u, g, x, 1.0)}[order]
            fast, plain = elu_second_order.backend(x), elu_second_order.reference
            return lambda: getattr(fast, order)(*arguments), lambda: getattr(plain, order)(*arguments)

        return make

    return [
        Row("elu_second_order", f"order={order} layout={layout} B=8 C=64 width=32", made(order, layout))
        for order in ("value", "first", "second")
        for layout in ("contiguous", "channels_last")
    ]
