"""The order of samples: a permutation for every (seed, epoch), read as one endless stream.

Step t reads places t*B .. t*B+B-1 of the stream, so the position in the data is the step number: nothing else needs to
be saved for an exact resume, and no sample is lost or repeated within an epoch.
"""

import torch
from torch import Tensor

from eblvm.engine.errors import UserError
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


class Order:
    def __init__(self, seed: Tensor, size: int, batch: int):
        self.seed, self.size, self.batch = seed, size, batch
        self._epochs: tuple[int, int] | None = None  # first and last epoch that `_stream` holds
        self._stream = torch.empty(0, dtype=torch.int64)  # on the seed's device, so that no index is copied in a step

    def indices(self, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """Indices into the data of step's minibatch, [*seed.shape, B]; of a rank its slice, places rank*B/world on.

        The slices of all ranks one after the other are the minibatch, whatever their number: sample i of a rank's slice
        has the global index rank*B/world + i, by which its noise is drawn.
        """
        if self.batch % world:
            raise UserError(f"got batch={self.batch} for {world} processes, expected a multiple of their number")
        local = self.batch // world
        return self._minibatch(step)[..., rank * local : (rank + 1) * local]

    def position(self, step: int) -> tuple[int, int]:
        """(epoch, samples of it already seen) before `step`."""
        return divmod(step * self.batch, self.size)

    def _minibatch(self, step: int) -> Tensor:
        start, stop = step * self.batch, (step + 1) * self.batch
        epochs = start // self.size, (stop - 1) // self.size
        if epochs != self._epochs:
            self._stream = torch.cat([self._permutation(e) for e in range(epochs[0], epochs[1] + 1)], -1)
            self._epochs = epochs
        offset = epochs[0] * self.size
        return self._stream[..., start - offset : stop - offset]

    def _permutation(self, epoch: int) -> Tensor:
        key, device = Key(self.seed, epoch), self.seed.device
        return philox.permutation(key, purpose(Purpose.ORDER), self.size, device=device)
