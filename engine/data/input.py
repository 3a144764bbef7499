"""The input of a step: minibatches from memory, or from pictures decoded ahead. Both give the same ones.

The order of samples is a permutation for every (seed, epoch), read as one endless stream: step t reads places
t*B .. t*B+B-1 of it, so the position in the data is the step number. Nothing else needs to be saved for an exact
resume, and no sample is lost or repeated within an epoch.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.pictures.stream import PicturesOnDemand, open_stream
from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.errors import UserError
from eblvm.engine.machine import start_thread
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

FLIP, DEQUANTIZE = purpose(Purpose.DATA, 1), purpose(Purpose.DATA, 2)


class Order:
    """The samples that a step reads."""

    def __init__(self, seed: Tensor, size: int, batch: int):
        self.seed, self.size, self.batch = seed, size, batch
        self._epochs: tuple[int, int] | None = None  # first and last epoch in `_stream`
        self._stream = torch.empty(0, dtype=torch.int64)  # on the seed's device, so that no index is copied in a step

    def indices(self, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """Indices into the data of step's minibatch, [*seed.shape, B]; of a rank its slice, places rank*B/world on.

        The slices of all ranks one after the other are the minibatch, whatever their number: sample i of a rank's slice
        has the global index rank*B/world + i, by which its noise is drawn.
        """
        if self.batch % world:
            raise UserError(f"got batch={self.batch} for {world} processes, expected a multiple of their number")
        start, stop, local = step * self.batch, (step + 1) * self.batch, self.batch // world
        epochs = start // self.size, (stop - 1) // self.size
        if epochs != self._epochs:
            order, device = purpose(Purpose.ORDER), self.seed.device
            keys = (Key(self.seed, epoch) for epoch in range(epochs[0], epochs[1] + 1))
            self._stream = torch.cat([philox.permutation(key, order, self.size, device=device) for key in keys], -1)
            self._epochs = epochs
        first = start - epochs[0] * self.size + rank * local
        return self._stream[..., first : first + local]


class Input:
    """Minibatches in the seed's order and with its noise, in one process of `world`, from the data set on the device.

    The order lives where the samples are chosen: with the data set in memory, on the host for pictures decoded by name.
    """

    def __init__(self, options: DataOptions, dataset: Dataset, seed: Tensor, batch: int, rank: int = 0, world: int = 1):
        self.options, self.dataset = options, dataset
        self.seed = seed.to(dataset.train.device)
        on_demand = isinstance(cast(object, dataset.train), PicturesOnDemand)
        self.order = Order(seed.cpu() if on_demand else self.seed, len(dataset.train), batch)
        self.rank, self.world = rank, world
        self.count = batch // world
        self.first = rank * self.count  # the global index of this process's first sample

    def batch(self, step: int) -> Tensor:
        """The minibatch of `step` (a rank's slice of it) as the model sees it: [*seed.shape, B, ...]."""
        train, places = self.dataset.train, self.indices(step)
        # Whole rows are copied, where an index by a tensor would go element by element.
        x = train.index_select(0, places.flatten()).view(*places.shape, *train.shape[1:])
        if self.options.flip:
            x = torch.where(self.mirrored(step)[..., None, None, None], x.flip(-1), x)
        return self.floats(x, step)

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint must contain apart from the step: in memory nothing."""
        return {}

    def close(self) -> None:
        """Stop the threads and the pipeline that decode."""

    def indices(self, step: int) -> Tensor:
        return self.order.indices(step, self.rank, self.world)

    def mirrored(self, step: int) -> Tensor:
        """The samples that are mirrored, bool [*seed.shape, B]."""
        seed = self.order.seed
        return philox.uniform(Key(seed, step), FLIP, self.count, first=self.first, device=seed.device) < 0.5

    def floats(self, x: Tensor, step: int) -> Tensor:
        """Bytes x as x/255, or dequantised as (x + u)/256 with u uniform in [0, 1)."""
        if not self.options.dequantize:
            return self.dataset.floats(x)
        shape = tuple(x.shape[self.seed.dim() + 1 :])
        kwargs: dict[str, Any] = {"first": self.first, "dtype": self.dataset.dtype, "device": x.device}
        u = philox.uniform(Key(self.seed, step), DEQUANTIZE, self.count, shape, **kwargs)
        return u.add_(x).div_(256)


class Made(NamedTuple):
    v: Tensor
    state: dict[str, Any]  # of the stream, after it
    ready: Any = None  # the event on a GPU after which v has its values


class Streaming(Input):
    """Pictures decoded ahead, and made a minibatch by a thread of their own, while the step before computes: on a GPU
    too, on a stream of its own, which the training stream waits for."""

    def __init__(self, *given: Any, pictures: PicturesOnDemand, threads: int, state: dict[str, Any]):
        super().__init__(*given)
        self.rows = self.seed.numel() * self.count
        self.stream = open_stream(pictures, self._choose, self.rows, threads)
        self.stream.restore(state)
        self._state = state  # after the minibatch given last; the stream itself is ahead of it
        self._last: tuple[int, Tensor] | None = None  # the minibatch given last: the first one is asked for twice
        self._ahead: tuple[int, Future[Made]] | None = None
        self._side = None
        if pictures.device.type == "cuda":
            self._side = torch.cuda.Stream(pictures.device)
            self._side.wait_stream(torch.cuda.current_stream(pictures.device))  # which made the seed
        self._thread = ThreadPoolExecutor(1, "input", start_thread, (threads, pictures.device))

    def batch(self, step: int) -> Tensor:
        if self._last is not None and self._last[0] == step:
            return self._last[1]
        if self._ahead is None or self._ahead[0] != step:
            self._ahead = step, self._thread.submit(self._make, step)
        v, self._state, ready = self._ahead[1].result()
        self._ahead = step + 1, self._thread.submit(self._make, step + 1)
        if ready is not None:
            training = torch.cuda.current_stream(v.device)
            training.wait_event(ready)
            v.record_stream(training)  # else its memory is the side stream's again while the step still reads it
        self._last = step, v
        return v

    def state(self) -> dict[str, Any]:
        return self._state

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._ahead = self._last = None
        self.stream.close()

    def _make(self, step: int) -> Made:
        if self._side is None:
            return Made(*self._read(step))
        with torch.cuda.stream(self._side):
            return Made(*self._read(step), self._side.record_event())

    def _read(self, step: int) -> tuple[Tensor, dict[str, Any]]:
        x = self.stream.read(step)
        v = self.floats(x.view(*self.seed.shape, self.count, *x.shape[1:]), step)
        return v, self.stream.state()

    def _choose(self, step: int) -> tuple[Tensor, Tensor]:
        places = self.indices(step).flatten()
        return places, self.mirrored(step).flatten() if self.options.flip else torch.zeros(self.rows)


def open_input(
    options: DataOptions,
    dataset: Dataset,
    seed: Tensor,
    batch: int,
    threads: int = 1,
    state: dict[str, Any] | None = None,
    rank: int = 0,
    world: int = 1,
) -> Input:
    """The input of a run from its beginning, or from the `state` in a checkpoint of it."""
    given, train = (options, dataset, seed, batch, rank, world), cast(object, dataset.train)
    if isinstance(train, PicturesOnDemand):
        return Streaming(*given, pictures=train, threads=threads, state=state or {})
    return Input(*given)
