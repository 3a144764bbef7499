"""Tasks of `eblvm bench kernels --contestants`: ops of eblvm.kernels, and a matrix product."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.bench.contest.task import Offered, Task
from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.measurements import kernels
from eblvm.bench.tools.kernel_row import Row
from eblvm.kernels import philox
from eblvm.kernels.philox import Key


@dataclass(frozen=True)
class InFp32(Task):
    """A task that contestants enter at any precision: timed in fp32, checked in fp64."""

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self)(torch.float32)


@dataclass(frozen=True)
class Op(InFp32, Offered):
    """One op; the check is its result in fp64, for contestants that compute the same function."""

    row: Row

    @property
    def name(self) -> str:
        return f"op={self.row.op} {self.row.labels}"

    def engine(self) -> Any:
        return kernels.discarding(self.row.make(torch.float32)[0])

    def difference(self, contestant: Contestant) -> float | None:
        result = contestant.enter(self)(torch.float64)()
        if contestant.deviation:
            return None
        pairs = zip(tree_leaves(result), tree_leaves(self.row.make(torch.float64)[0]()), strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


@dataclass(frozen=True)
class Product(InFp32):
    """One matrix product of a GRBM's step, which the engine leaves to torch; the check is its result in fp64."""

    work = "product"
    rows: int = 100
    inner: int = 560
    columns: int = 400

    @property
    def name(self) -> str:
        return f"product={self.rows}x{self.inner}x{self.columns}"

    def factors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        left = philox.uniform(Key(0, 0), 0, self.rows, (self.inner,), dtype=dtype)
        return left, philox.uniform(Key(1, 0), 0, self.inner, (self.columns,), dtype=dtype)

    def engine(self) -> Any:
        left, right = self.factors(torch.float32)
        return kernels.discarding(lambda: left @ right)

    def difference(self, contestant: Contestant) -> float:
        expected = torch.mm(*self.factors(torch.float64))
        result = torch.from_numpy(np.array(contestant.enter(self)(torch.float64)()))
        return float((result - expected).abs().max() / expected.abs().max())


def tasks() -> list[Task]:
    wanted = (
        "op=philox kind=normal B=100 width=560",
        "op=elu_second_order order=second layout=contiguous",
        "op=adam_unroll pass=reverse",
        "op=bernoulli_lower order=second noise=given",
    )
    return [*(task for task in map(Op, kernels.rows()) if task.name.startswith(wanted)), Product()]
