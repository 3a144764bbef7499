"""Suite `fid`: FID where the answer is known, CIFAR-10's training images against its test images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eblvm.bench.measurements import fid
from eblvm.bench.suites import Record, Suite
from eblvm.engine import tables
from eblvm.engine.errors import UserError
from eblvm.engine.options import option


@dataclass(frozen=True)
class Fid(Suite):
    kind = "fid"
    group = "runs"
    help = "FID of CIFAR-10's training images against its test images, which is known"

    data: str = option("", "CIFAR-10 as .npz, with x_train and x_test")
    sizes: tuple[int, ...] = option((500, 1000, 2000), "images in each set, before all of them", low=1)

    def run(self) -> Record:
        if not self.data:
            raise UserError("'eblvm bench fid' needs CIFAR-10; give --data FILE.npz")
        return fid.run(Path(self.data), list(self.sizes))

    def format_table(self, result: Record) -> str:
        return tables.text(*fid.table(result))
