"""FID where the answer is known: CIFAR-10's training images against its test images, by the installed Inception.

`eblvm bench fid --data cifar10.npz` makes the record, `eblvm bench pages` its section of docs/results.md.
A finite sample adds about c (1/m + 1/n) to a FID. The control, training images against other training images, is
nothing but that term; it gives c, and with c what 50,000 against 10,000 images would show.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.bench.tools import record
from eblvm.bench.tools.columns import Table
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics import inception
from eblvm.engine.evaluation.metrics.frechet import FeatureMoments, frechet_distance
from eblvm.engine.evaluation.metrics.image_distances import cached_images, extracted
from eblvm.engine.evaluation.metrics.kernel_distance import kernel_distance
from eblvm.engine.recipes import recipe
from eblvm.kernels.philox import Key

SCHEMA = "eblvm-fid-2"
KNOWN = 3.15  # of 50,000 training and 10,000 test images, by the reference code


def measure(train: Tensor, test: Tensor, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """For every n: FID and KID of n training against n test images, and of n against n other training images; then of
    all against all, whose bias is estimated from the c of the largest n."""
    rows = []
    for m, n in [*((n, n) for n in sizes), (len(train), len(test))]:
        first, unseen, others = train[:m], test[:n], train[m : m + n]
        moments, control = FeatureMoments.of(first), None
        fid = frechet_distance(moments, FeatureMoments.of(unseen))
        if len(others) == n:
            control = frechet_distance(moments, FeatureMoments.of(others))
            c = control / (1 / m + 1 / n)
        kid = kernel_distance(first, unseen, Key(0, 0))
        rows.append(
            {
                "train_images": m,
                "test_images": n,
                "fid": fid,
                "fid_control": control,
                "fid_at_full_size": fid - c * (1 / m + 1 / n) + c * (1 / 50_000 + 1 / 10_000),
                "kid": kid.mean,
                "kid_deviation": kid.deviation,
                "kid_subset": kid.subset,
            }
        )
    return rows


def run(data: str | Path, sizes: Sequence[int]) -> dict[str, Any]:
    if not data:
        raise UserError("'eblvm bench fid' needs CIFAR-10; give --data FILE.npz")
    path = Path(data)
    net, images = inception.load(), recipe("cifar10").replaced(data=str(path)).load_data()
    train, test = len(images.train) + len(images.valid), len(images.test)
    if 2 * max(sizes) > train or max(sizes) > test:
        raise UserError(
            f"{path} has {train} images to train and {test} to test with, sizes up to {max(sizes)} need "
            f"{2 * max(sizes)} and {max(sizes)}; give smaller --sizes"
        )
    torch.set_num_threads(1)
    unseen, *seen = (
        torch.cat(list(extracted(cached_images(x), net, description=split)))
        for split, x in (("test", images.test), ("train", images.train), ("valid", images.valid))
    )
    rows = measure(torch.cat(seen), unseen, sizes)
    body = {"inception": net.name, "inception_weights": net.digest, "rows": rows}
    command = f"eblvm bench fid --data {path.name} --sizes {','.join(map(str, sizes))}"
    return record.make(SCHEMA, "fid-cifar10", command, "cpu", body)


def table(result: dict[str, Any]) -> Table:
    header = [
        "training images",
        "test images",
        "FID to test",
        "FID to other training",
        "at 50,000 and 10,000",
        "KID to test × 1000",
    ]
    rows = [
        [
            str(r["train_images"]),
            str(r["test_images"]),
            f"{r['fid']:.2f}",
            "-" if r["fid_control"] is None else f"{r['fid_control']:.2f}",
            f"{r['fid_at_full_size']:.2f}",
            f"{1000 * r['kid']:.2f} ± {1000 * r['kid_deviation']:.2f}",
        ]
        for r in result["rows"]
    ]
    return header, rows
