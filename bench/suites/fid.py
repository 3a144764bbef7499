"""Suite `fid`: FID where the answer is known, CIFAR-10's training images against its test images."""

from __future__ import annotations

from typing import Any, ClassVar

from eblvm.bench.measurements import fid
from eblvm.bench.suites import Suite
from eblvm.engine.options import option


class Fid(Suite):
    kind = "fid"
    group = "runs"
    help = "FID of CIFAR-10's training images against its test images, which is known"
    measurement: ClassVar[Any] = fid

    data: str = option("", "CIFAR-10 as .npz, with x_train and x_test")
    sizes: tuple[int, ...] = option((500, 1000, 2000), "images in each set, before all of them", low=1)
