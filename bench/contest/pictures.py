"""Tasks of `eblvm bench data --contestants`: reading pictures, and FID."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.bench.contest.task import Offered, Task
from eblvm.bench.contestants.roster import Contestant
from eblvm.bench.measurements import data
from eblvm.engine.data.pictures.framing import DaliDecoder, Framing, PillowDecoder
from eblvm.engine.data.readers import picture_folder
from eblvm.engine.evaluation.metrics.frechet import FeatureMoments, frechet_distance
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

PICTURES = 1000  # of the set, in every contestant's own form


class Album:
    """Encoded pictures, their decoded form, and a scratch folder for what contestants make of them."""

    def __init__(self, pictures: Path, scratch: Path):
        self.scratch = scratch
        self.paths = sorted(pictures.glob("*.jpg"))[:PICTURES]
        self.decode = PillowDecoder(Framing(data.SIZE, picture_folder.CELEBA_CROP))
        decoded = self.decode([path.read_bytes() for path in self.paths])
        self.images = torch.from_numpy(np.stack([np.asarray(x) for x in decoded]))


@dataclass(frozen=True)
class Reading(Offered):
    """CHUNK pictures of 64 pixels as bytes; the check is the largest difference of a byte from Pillow's."""

    album: Album
    source: str  # what the engine reads: its store, or pictures by DALI

    @property
    def name(self) -> str:
        return f"input={self.source} size={data.SIZE}"

    def engine(self) -> Any:
        if self.source == "store":
            return data.Reading(self.album.images)
        return data.Decoding(self.album.paths, DaliDecoder(self.album.decode.framing, threads=1))

    def difference(self, contestant: Contestant) -> float:
        pictures = contestant.enter(self).pictures()
        return float((pictures.int() - self.album.images[: len(pictures)].int()).abs().max())


@dataclass(frozen=True)
class Fid(Task):
    """FID of 2,000 against 2,000 feature vectors; the check is its relative difference."""

    work = "fid"
    features: int = 512
    long = True

    @property
    def name(self) -> str:
        return f"fid images=2000 features={self.features}"

    def sets(self) -> tuple[Tensor, Tensor]:
        """Two sets of features, of different means and scales."""
        one, other = (philox.normal(Key(3, i), 0, 2000, (self.features,)) for i in range(2))
        return one, 0.1 + 1.2 * other

    def distance(self) -> float:
        return frechet_distance(*(FeatureMoments.of(x) for x in self.sets()))

    def engine(self) -> Any:
        one, other = self.sets()
        return lambda: frechet_distance(FeatureMoments.of(one), FeatureMoments.of(other))

    def difference(self, contestant: Contestant) -> float:
        expected = self.distance()
        return abs(contestant.enter(self).distance() - expected) / expected


def tasks(pictures: Path | None, scratch: Path) -> list[Task]:
    album = Album(pictures or data.default_pictures(), scratch)
    return [Reading(album, "store"), Reading(album, "dali"), Fid()]
