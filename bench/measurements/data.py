"""`eblvm bench data`: pictures per second of both decoders and of a prepared store, and the cost of input.

Decoders and store are timed as everything else, interleaved, by CPU time with one thread each. How much of the stream's
time hides behind training is wall time by its nature: torch's profiler says how long a step waited for its minibatch,
against the time of the same minibatches without a step to hide behind.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from eblvm.bench.measurements import deep
from eblvm.bench.tools import columns, record, records
from eblvm.bench.tools.timing import Step, interleaved, median
from eblvm.engine import tables
from eblvm.engine.config import Config
from eblvm.engine.data.contents import Pictures
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.input import Input, Order, open_input
from eblvm.engine.data.pictures.framing import DaliDecoder, Decoder, Framing, PillowDecoder, import_dali
from eblvm.engine.data.readers import picture_folder
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

SCHEMA = "eblvm-bench-data/1"
COLUMNS = ("case", "images_per_s", "ratio", "input_ms", "step_ms", "percent")
CHUNK, SIZE = 250, 64  # pictures of one reading, pixels
STREAMED = 12  # steps of training under the profiler
STORE_RATIO, FETCH_PERCENT, HIDDEN_PERCENT = 20, 2, 90  # the bars
SEED = torch.tensor(0)


@dataclass
class Decoding:
    """One call decodes the next CHUNK pictures."""

    paths: Sequence[Path]
    decode: Decoder
    place: int = 0

    def __call__(self) -> None:
        chosen = [self.paths[i % len(self.paths)] for i in range(self.place, self.place + CHUNK)]
        self.place += CHUNK
        decoded = self.decode([path.read_bytes() for path in chosen])
        if bad := [path.name for path, image in zip(chosen, decoded, strict=True) if isinstance(image, str)]:
            raise UserError(f"{bad[0]} cannot be read as a picture; the bench needs a set without such ones")


@dataclass
class Fetching:
    """One call fetches the next minibatch as training does."""

    batches: Input
    step: int = 0

    def __call__(self) -> None:
        self.batches.batch(self.step)
        self.step += 1


@dataclass
class Reading:
    """One call reads the next CHUNK pictures of a store in random order, as bytes, like a decoder's result."""

    images: Tensor
    step: int = 0

    def __post_init__(self) -> None:
        self.order = Order(SEED, len(self.images), CHUNK)

    def __call__(self) -> None:
        self.images.index_select(0, self.order.indices(self.step))
        self.step += 1


def run(rounds: int, data: str | Path | None, progress: bool = True) -> dict[str, Any]:
    """The record of the suite, on the CelebA pictures in `data`."""
    torch.set_num_threads(1)
    import_dali()
    pictures = default_pictures() if data is None else Path(data)
    images = picture_folder.read_folder(pictures).splits["all"].images
    assert isinstance(images, Pictures)
    with (
        tempfile.TemporaryDirectory() as cache,
        tqdm(total=2 * rounds, desc="data", disable=None if progress else True, file=sys.stderr, leave=False) as bar,
    ):
        faces = recipe("celeba64", small=True).replaced(data=str(pictures), cache=cache)
        rows = [*decoders(images.files, faces, rounds, bar.update), memory(rounds, bar.update), stream(faces)]
    body = {"rounds": rounds, "pictures": len(images), "rows": rows}
    return record.make(SCHEMA, "data", f"eblvm bench data --rounds {rounds}", "cpu", body)


def default_pictures() -> Path:
    """The folder celeba in $EBLVM_DATA, or in ../shared/data, where the tests look."""
    root = Path(os.environ.get("EBLVM_DATA", records.SOURCE.parent / "shared" / "data"))
    if not (root / "celeba").is_dir():
        raise UserError(f"no pictures in {root / 'celeba'}; give --data the folder of CelebA's, or set EBLVM_DATA")
    return root / "celeba"


def decoders(paths: Sequence[Path], faces: Config, rounds: int, tick: Any) -> list[dict[str, Any]]:
    """Rows of Pillow, DALI and the store, one thread each; the store's ratio is to the faster decoder."""
    framing = Framing(SIZE, picture_folder.CELEBA_CROP)
    group: list[Step] = [
        Decoding(paths, PillowDecoder(framing)),
        Decoding(paths, DaliDecoder(framing, threads=1)),
        Reading(faces.load_data().train),
    ]
    (readings,) = interleaved([group], rounds, "cpu", tick)
    rates = [1e3 * CHUNK / median(r) for r in readings]
    names = ("pillow", "dali", "store")
    ratios = [rates[0] / rates[0], rates[1] / rates[0], rates[2] / max(rates[:2])]
    return [
        row(f"input={name} size={SIZE}", images_per_s=rate, ratio=ratio)
        for name, rate, ratio in zip(names, rates, ratios, strict=True)
    ]


def memory(rounds: int, tick: Any) -> dict[str, Any]:
    """The row of fetching a minibatch from memory, against the training step it feeds; both of `cifar10 --small`."""
    config = recipe("cifar10", small=True)
    bytes_ = philox.uniform(Key(0, 0), purpose(Purpose.DATA), 10_000, (3, 32, 32)).mul(256).byte()
    fetch = Fetching(open_input(config.dataset, Dataset(bytes_, bytes_, bytes_), SEED, config.optimisation.batch))
    (readings,) = interleaved([[fetch, deep.DeepStep(config)]], rounds, "cpu", tick)
    input_ms, step_ms = (median(r) for r in readings)
    percent = 100 * input_ms / step_ms
    return row("input=memory recipe=cifar10 small=yes", input_ms=input_ms, step_ms=step_ms, percent=percent)


def stream(faces: Config) -> dict[str, Any]:
    """The row of streamed pictures before a training step of `celeba64 --small`: the percentage of their time that
    training hides."""
    config = faces.replaced(input="dali")
    dataset = config.load_data()
    step = deep.DeepStep(config, (3, SIZE, SIZE))

    def waited_ms(training: bool) -> tuple[float, float]:
        batches = open_input(config.dataset, dataset, SEED, config.optimisation.batch, config.running.threads)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for i in range(STREAMED + 2):
                with record_function("input"):
                    step.v = batches.batch(i)
                with record_function("step"):
                    if training:
                        step()
        # The first two minibatches wait for the pipeline to start.
        spans = {name: [e.time_range for e in profiled.events() if e.name == name][2:] for name in ("input", "step")}
        input_ms, step_ms = (median([(r.end - r.start) / 1e3 for r in ranges]) for ranges in spans.values())
        return input_ms, step_ms

    alone, _ = waited_ms(training=False)
    waited, step_ms = waited_ms(training=True)
    percent = 100 * (1 - waited / alone)
    return row("input=dali recipe=celeba64 small=yes", input_ms=alone, step_ms=step_ms, percent=percent)


def row(case: str, **figures: float) -> dict[str, Any]:
    return {"case": case, **{name: figures.get(name) for name in COLUMNS[1:]}}


def problems(result: dict[str, Any]) -> list[str]:
    """The bars that a record misses."""
    rows = {row["case"].split()[0]: row for row in result["rows"] if row["percent"] is None}
    fetch, streamed = (row for row in result["rows"] if row["percent"] is not None)
    missed = []
    if rows["input=store"]["ratio"] < STORE_RATIO:
        missed.append(
            f"the store gives {rows['input=store']['ratio']:.1f} times a decoder's pictures, expected {STORE_RATIO}"
        )
    if fetch["percent"] > FETCH_PERCENT:
        missed.append(f"the fetch from memory is {fetch['percent']:.2f} % of a step, expected {FETCH_PERCENT} %")
    if streamed["percent"] < HIDDEN_PERCENT:
        missed.append(f"training hides {streamed['percent']:.1f} % of the stream's time, expected {HIDDEN_PERCENT} %")
    return missed


def format_table(result: dict[str, Any]) -> str:
    return tables.text(*columns.table(COLUMNS, result))
