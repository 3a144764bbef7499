"""Tasks of `eblvm bench data|kernels|bidvl --contestants`: reading pictures, FID, ops, and BiDVL's step."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.suites import bidvl, data, kernels
from eblvm.bench.tools.kernel_row import Row
from eblvm.bench.tools.registry import Case
from eblvm.engine.config import Config
from eblvm.engine.data.pictures.framing import DaliDecoder, Framing, PillowDecoder
from eblvm.engine.data.readers import folder
from eblvm.engine.evaluation.metrics.frechet import Moments, frechet_distance
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.recipes import recipe
from eblvm.engine.sampling.langevin import langevin, marginal_score
from eblvm.engine.types import Params
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

PICTURES = 1000  # of the set, in every contestant's own form


class Album:
    """Encoded pictures, their decoded form, and a scratch folder for what contestants make of them."""

    def __init__(self, pictures: Path, scratch: Path):
        self.scratch = scratch
        self.paths = sorted(pictures.glob("*.jpg"))[:PICTURES]
        self.decode = PillowDecoder(Framing(data.SIZE, folder.CELEBA_CROP))
        decoded = self.decode([path.read_bytes() for path in self.paths])
        self.images = torch.from_numpy(np.stack([np.asarray(x) for x in decoded]))


@dataclass(frozen=True)
class Reading:
    """CHUNK pictures of 64 pixels as bytes; the check is the largest difference of a byte from Pillow's."""

    album: Album
    source: str  # what the engine reads: its store, or pictures by DALI
    long: bool = False

    @property
    def name(self) -> str:
        return f"input={self.source} size={data.SIZE}"

    def engine(self) -> Any:
        if self.source == "store":
            return data.Reading(self.album.images)
        return data.Decoding(self.album.paths, DaliDecoder(self.album.decode.framing, threads=1))

    def suits(self, contestant: Contestant) -> bool:
        return contestant.task == "step" and contestant.enter(self) is not None

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self)

    def difference(self, contestant: Contestant) -> float:
        found = contestant.enter(self).pictures()
        return float((found.int() - self.album.images[: len(found)].int()).abs().max())


@dataclass(frozen=True)
class Fid:
    """FID of 2,000 against 2,000 feature vectors; the check is its relative difference."""

    features: int = 512
    long: bool = True

    @property
    def name(self) -> str:
        return f"fid images=2000 features={self.features}"

    def sets(self) -> tuple[Tensor, Tensor]:
        """Two sets of features, of different means and scales."""
        one, other = (philox.normal(Key(3, i), 0, 2000, (self.features,)) for i in range(2))
        return one, 0.1 + 1.2 * other

    def distance(self) -> float:
        return frechet_distance(*(Moments.of(x) for x in self.sets()))

    def engine(self) -> Any:
        one, other = self.sets()
        return lambda: frechet_distance(Moments.of(one), Moments.of(other))

    def suits(self, contestant: Contestant) -> bool:
        return contestant.task == "fid"

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self)

    def difference(self, contestant: Contestant) -> float:
        expected = self.distance()
        return abs(contestant.enter(self).distance() - expected) / expected


@dataclass(frozen=True)
class Langevin:
    """Langevin dynamics on a GRBM's free energy; the check is where chains without noise end, in fp64."""

    batch: int = 100
    visible: int = 560
    latent: int = 400
    steps: int = 20
    step_size: float = 0.02
    long: bool = False

    @property
    def name(self) -> str:
        return f"sampling=langevin steps={self.steps} chains={self.batch}"

    def model(self, dtype: torch.dtype) -> tuple[GRBM, Params, Tensor]:
        energy = GRBM(self.visible, self.latent)
        theta = {name: p.to(dtype) for name, p in energy.initial(Key(0, 0)).items()}
        return energy, theta, philox.uniform(Key(1, 0), 0, self.batch, (self.visible,), dtype=dtype)

    def chains(self, dtype: torch.dtype, temperature: float) -> Callable[[], Tensor]:
        energy, theta, v = self.model(dtype)
        score, schedule = marginal_score(energy, theta), [temperature] * self.steps
        return lambda: langevin(score, (v,), Key(0, 0), schedule, self.step_size)[0]

    def engine(self) -> Any:
        return self.chains(torch.float32, 1.0)

    def suits(self, contestant: Contestant) -> bool:
        return contestant.task == "langevin"

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self).chains(torch.float32, 1.0)

    def difference(self, contestant: Contestant) -> float:
        expected = self.chains(torch.float64, 0.0)()
        found = contestant.enter(self).chains(torch.float64, 1e-13)()  # its noise has to be positive
        return float((found - expected).abs().max() / expected.abs().max())


def data_tasks(pictures: Path | None, scratch: Path) -> list[Any]:
    album = Album(pictures or data.default_pictures(), scratch)
    return [Reading(album, "store"), Reading(album, "dali"), Fid()]


@dataclass(frozen=True)
class Op:
    """One op; the check is its result in fp64, for contestants that compute the same function."""

    row: Row
    long: bool = False

    @property
    def name(self) -> str:
        return f"op={self.row.op} {self.row.labels}"

    def engine(self) -> Any:
        return kernels.discarding(self.row.make(torch.float32)[0])

    def suits(self, contestant: Contestant) -> bool:
        return contestant.task == "step" and contestant.enter(self) is not None

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self)(torch.float32)

    def difference(self, contestant: Contestant) -> float | None:
        found = contestant.enter(self)(torch.float64)()
        if contestant.deviation:
            return None
        pairs = zip(tree_leaves(found), tree_leaves(self.row.make(torch.float64)[0]()), strict=True)
        return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


@dataclass(frozen=True)
class Product:
    """One matrix product of a GRBM's step, which the engine leaves to torch; the check is its result in fp64."""

    rows: int = 100
    inner: int = 560
    columns: int = 400
    long: bool = False

    @property
    def name(self) -> str:
        return f"product={self.rows}x{self.inner}x{self.columns}"

    def factors(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        left = philox.uniform(Key(0, 0), 0, self.rows, (self.inner,), dtype=dtype)
        return left, philox.uniform(Key(1, 0), 0, self.inner, (self.columns,), dtype=dtype)

    def engine(self) -> Any:
        left, right = self.factors(torch.float32)
        return kernels.discarding(lambda: left @ right)

    def suits(self, contestant: Contestant) -> bool:
        return contestant.task == "product"

    def enter(self, contestant: Contestant) -> Any:
        return contestant.enter(self)(torch.float32)

    def difference(self, contestant: Contestant) -> float:
        expected = torch.mm(*self.factors(torch.float64))
        found = torch.from_numpy(np.array(contestant.enter(self)(torch.float64)()))
        return float((found - expected).abs().max() / expected.abs().max())


def kernel_tasks() -> list[Any]:
    wanted = (
        "op=philox kind=normal B=100 width=560",
        "op=elu_second_order order=second layout=contiguous",
        "op=adam_unroll pass=reverse",
        "op=bernoulli_lower order=second noise=given",
    )
    return [*(task for task in map(Op, kernels.rows()) if task.name.startswith(wanted)), Product()]


@dataclass(frozen=True)
class Bidvl:
    """One step of BiDVL; the check is a parameter's largest difference after three steps of both, in fp64."""

    case: Case
    long: bool = True

    @property
    def name(self) -> str:
        return self.case.name

    def engine(self) -> Any:
        return bidvl.EngineStep(self.case.config, self.case.shape)

    def suits(self, contestant: Contestant) -> bool:
        return True

    def enter(self, contestant: Contestant) -> Any:
        step = bidvl.NaiveStep(self.case.config, self.case.shape)  # type: ignore[arg-type]
        contestant.enter(step.method)
        return step

    def difference(self, contestant: Contestant) -> float:
        return bidvl.difference(adapt=contestant.enter)


def bidvl_tasks(config: Config | None = None) -> list[Any]:
    sizes = {"batch": 10, "width": 32, "posterior_width": 24, "generator_width": 24}  # half the published widths
    config = config or recipe("cifar10", method="bidvl").replaced(**sizes)
    return [Bidvl(Case(config, (3, 32, 32), title="method=bidvl batch=10 N=0 width=32"))]


MAKERS: dict[str, Callable[[], list[Any]]] = {"kernels": kernel_tasks, "bidvl": bidvl_tasks}
