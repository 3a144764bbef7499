"""Suite `kernels`: each op of eblvm.kernels that has a faster backend, against its reference."""

from collections.abc import Callable

import torch
from torch import Tensor

from eblvm.bench import kernels_grbm
from eblvm.bench.agreement import AgreementError
from eblvm.bench.contestants import Contest
from eblvm.engine.errors import UserError
from eblvm.kernels import backends, philox
from eblvm.kernels.philox import Key
from eblvm.kernels.philox.reference import Kind
from eblvm.kernels.philox.reference import philox as reference

COUNT = 100
DRAWS: dict[str, Callable[..., Tensor]] = {
    "uniform": philox.uniform,
    "normal": philox.normal,
    "logistic": philox.logistic,
    "gumbel": philox.gumbel,
    "rademacher": philox.rademacher,
}


def contests() -> list[Contest]:
    """Every distribution at Frey face's batch, [100, 560], and normals at the toy's, [100, 2]; then the GRBM ops."""
    serving = next(b for b in backends() if b.op == "philox" and b.device == "cpu" and b.serves)
    if serving.name == "reference":
        reasons = "; ".join(b.reason for b in backends() if b.op == "philox" and b.device == "cpu" and not b.serves)
        raise UserError(f"suite 'kernels' compares with the reference, and nothing else serves philox here: {reasons}")
    found = []
    for name, width in [*((name, 560) for name in DRAWS), ("normal", 2)]:
        fast, plain = draws(name, width)
        if not torch.equal(fast(), plain()):
            raise AgreementError(
                f"philox {name}: {serving.name} and reference give different bits; no speed is reported"
            )
        label = f"op=philox kind={name} backend={serving.name} B={COUNT} width={width}"
        found.append(Contest(label, discarding(fast), list, True, discarding(plain), list, None))
    return found + kernels_grbm.contests()


def draws(name: str, width: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    seed, kind = torch.tensor(7), int(Kind[name.upper()])
    return (
        lambda: DRAWS[name](Key(7, 3), 5, COUNT, (width,)),
        lambda: reference(seed, 3, 5, COUNT, width, 0, kind),
    )


def discarding(draw: Callable[[], Tensor]) -> Callable[[], None]:
    def step() -> None:
        draw()

    return step
