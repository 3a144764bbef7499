"""Training pictures straight from their files or shards, decoded ahead while a step computes, for sets beyond memory.

A decoder decides nothing: which pictures a step sees, in which order and which are mirrored comes from `Order` and
Philox, to DALI through its external source. So a stream gives what memory would give, and resumes exactly.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.engine.data.contents import PictureFile
from eblvm.engine.data.dataset import grey
from eblvm.engine.data.members import Members
from eblvm.engine.data.pictures.decoding import problem
from eblvm.engine.data.pictures.framing import (
    DALI_EXTRA,
    Framing,
    PillowDecoder,
    dali_framed,
    decoder_for,
    has_dali,
    import_dali,
)
from eblvm.engine.errors import UserError, printable, reason

Choose = Callable[[int], tuple[Tensor, Tensor]]  # step -> the indices [B] of its pictures, and which are mirrored
HEAD = 1 << 14  # bytes of a file that usually contain its size in pixels
PREFETCH = 2  # minibatches decoded ahead


class PicturesOnDemand:
    """Used as the tensor uint8 [n, C, S, S] of a set of pictures; rows are decoded when they are indexed."""

    dtype = torch.uint8

    def __init__(
        self,
        files: Sequence[PictureFile],
        framing: Framing,
        decoder: str | None = None,
        channels: int = 3,
        device: str = "cpu",
    ):
        self.files, self.framing, self.device = files, framing, torch.device(device)
        self.decoder = "dali" if decoder == "dali" or (decoder is None and has_dali()) else "pillow"
        self.shape = torch.Size((len(files), channels, framing.size, framing.size))

    def __len__(self) -> int:
        return len(self.files)

    def dim(self) -> int:
        return len(self.shape)

    def to(self, device: str) -> "PicturesOnDemand":
        return PicturesOnDemand(self.files, self.framing, self.decoder, self.shape[1], device)

    def __getitem__(self, places: slice | Tensor) -> Tensor:
        if isinstance(places, slice):
            places = torch.arange(len(self))[places]
        files = [self.files[i] for i in places.flatten().tolist()]
        images = decoder_for(self.framing, name=self.decoder)([read(file) for file in files])
        for file, image in zip(files, images, strict=True):
            if isinstance(image, str):
                raise unreadable(file, image)
        rows = self.coloured(torch.from_numpy(np.stack([np.asarray(image) for image in images])))
        return rows.view(*places.shape, *self.shape[1:]).to(self.device)

    def coloured(self, rows: Tensor) -> Tensor:
        """Decoded pictures [n, 3, S, S] in the channels that are asked for."""
        return rows if self.shape[1] == 3 else grey(rows)


class Stream:
    """Minibatches uint8 [B, C, S, S] by step. `state` is what a checkpoint needs and `restore` reads.

    Pillow's pictures of a step are a function of the step, so there is nothing to save."""

    def __init__(self, pictures: PicturesOnDemand, choose: Choose):
        self.pictures, self.choose = pictures, choose

    def read(self, step: int) -> Tensor:
        places, mirrored = self.choose(step)
        x = self.pictures[places]
        return torch.where(mirrored.bool().to(x.device)[:, None, None, None], x.flip(-1), x)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


class DaliStream(Stream):
    """DALI reads, decodes and mirrors the pictures of consecutive steps ahead, in threads of its own or on the GPU."""

    def __init__(self, pictures: PicturesOnDemand, choose: Choose, batch: int, threads: int = 1):
        super().__init__(pictures, choose)
        self.dali, self.batch, self.threads = import_dali(), batch, threads
        self.names = None if isinstance(pictures.files, Members) else name_rows(pictures.files)
        self._seen = np.zeros(len(pictures), bool)
        self._pipeline: Any = None
        self._first, self._next = 0, 0  # the steps of the pipeline's first iteration, and of the one that comes next

    def read(self, step: int) -> Tensor:
        """The minibatch of `step`; a step that does not follow the last one starts the pipeline anew."""
        if self._pipeline is None or step != self._next:
            self._first = step
            self._pipeline = self._build(None)
        try:
            (images,) = self._pipeline.run()
        except RuntimeError as error:
            raise self._explained(step, error) from None
        self._next = step + 1
        return self._tensor(images)

    def state(self) -> dict[str, Any]:
        """DALI's version and its own checkpoint, after the last minibatch that was read."""
        if self._pipeline is None:
            return {}
        blob = torch.frombuffer(bytearray(self._pipeline.checkpoint()), dtype=torch.uint8)
        return {"dali": self.dali.__version__, "first": self._first, "next": self._next, "pipeline": blob}

    def restore(self, state: dict[str, Any]) -> None:
        if not state:
            return
        if state["dali"] != self.dali.__version__:
            raise UserError(
                f"the checkpoint's input state is of DALI {state['dali']}, installed is {self.dali.__version__}; "
                f"install that version of the extra: {DALI_EXTRA} 'nvidia-dali-cuda130=={state['dali']}'"
            )
        self._first, self._next = state["first"], state["next"]
        self._pipeline = self._build(state["pipeline"].numpy().tobytes())

    def close(self) -> None:
        """Give the pipeline's threads and memory back."""
        self._pipeline = None

    def _build(self, checkpoint: bytes | None) -> Any:
        dali, device = self.dali, self.pictures.device
        place = "gpu" if device.type == "cuda" else "cpu"

        settings: dict[str, Any] = {"batch_size": self.batch, "num_threads": self.threads, "device_id": gpu_of(device)}
        settings |= {"prefetch_queue_depth": PREFETCH, "enable_checkpointing": True, "checkpoint": checkpoint}

        @dali.pipeline_def(**settings)  # type: ignore[untyped-decorator]
        def streaming() -> Any:
            chosen = Chosen(self._found, self.choose, self._first)
            source, mirror = dali.fn.external_source(
                source=chosen, num_outputs=2, batch=True, batch_info=True, ndim=[1, 0],
                dtype=[dali.types.UINT8, dali.types.INT32],
            )  # fmt: skip
            encoded = source if self.names is None else dali.fn.io.file.read(source)
            return dali_framed(encoded, self.pictures.framing, mirror, place)

        pipeline = streaming()
        pipeline.build()
        return pipeline

    def _found(self, places: Tensor) -> np.ndarray | list[np.ndarray]:
        """Names of files, which DALI reads; of pictures within archives their bytes."""
        if self.names is not None:
            self._see(places.tolist())
            return self.names[places.numpy()]
        contents = []
        for member in (self.pictures.files[i] for i in places.tolist()):
            content = member.read_bytes()
            if (wrong := problem(content)) is not None:
                raise unreadable(member, wrong)
            contents.append(np.frombuffer(content, np.uint8))
        return contents

    def _see(self, places: list[int]) -> None:
        """Check every picture's header against the limits before DALI decodes it for the first time."""
        for i in places:
            if not self._seen[i]:
                path = self.pictures.files[i]
                assert isinstance(path, Path)
                if not path.is_file():
                    raise gone(path)
                with path.open("rb") as file:
                    content = file.read(HEAD)
                    if problem(content) is not None:
                        content += file.read()
                if (wrong := problem(content)) is not None:
                    raise unreadable(path, wrong)
                self._seen[i] = True

    def _tensor(self, images: Any) -> Tensor:
        from nvidia.dali.plugin.pytorch import feed_ndarray

        out = torch.empty(self.batch, 3, *self.pictures.shape[2:], dtype=torch.uint8, device=self.pictures.device)
        # The thread's own stream, not the training one (data/input.py). DALI keeps the pictures until they are copied.
        stream = torch.cuda.current_stream(out.device) if out.is_cuda else None
        feed_ndarray(images.as_tensor(), out, cuda_stream=stream)
        return self.pictures.coloured(out)

    def _explained(self, step: int, error: Exception) -> Exception:
        """DALI does not say which picture it was; Pillow does. The pipeline may have been ahead of `step`."""
        decode = PillowDecoder(self.pictures.framing)
        for ahead in range(step, step + PREFETCH + 1):
            for file in (self.pictures.files[i] for i in self.choose(ahead)[0].tolist()):
                try:
                    (decoded,) = decode([read(file)])
                except UserError as wrong:
                    return wrong
                if isinstance(decoded, str):
                    return unreadable(file, decoded)
        return UserError(f"DALI cannot decode a picture of step {step} ({reason(error)}); remove --input dali")


def open_stream(pictures: PicturesOnDemand, choose: Choose, batch: int, threads: int = 1) -> Stream:
    return Stream(pictures, choose) if pictures.decoder == "pillow" else DaliStream(pictures, choose, batch, threads)


def gpu_of(device: torch.device) -> int | None:
    """The number of the device for DALI; none for the CPU, where a number would be a GPU's."""
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


class Chosen:
    """The external source: a function of the iteration alone, which is what DALI can checkpoint."""

    def __init__(self, find: Callable[[Tensor], Any], choose: Choose, first: int):
        self.find, self.choose, self.first = find, choose, first

    def __call__(self, info: Any) -> tuple[Any, np.ndarray]:
        places, mirrored = self.choose(self.first + info.iteration)
        return self.find(places), mirrored.int().numpy()


def name_rows(files: Sequence[PictureFile]) -> np.ndarray:
    """Absolute names as bytes [n, L]; shorter ones begin with more slashes, which mean one.

    The main thread passes them on in every step: a list of arrays would take longer than one array.
    """
    names = [os.fsencode(file.absolute()) for file in files if isinstance(file, Path)]
    longest = max(map(len, names))
    return np.frombuffer(b"".join(name.rjust(longest, b"/") for name in names), np.uint8).reshape(len(names), longest)


def read(file: PictureFile) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise gone(file) from None


def gone(file: object) -> UserError:
    return UserError(f"{printable(file)} has gone since the run began; put it back")


def unreadable(file: object, why: str) -> UserError:
    return UserError(f"{printable(file)} cannot be read as a picture ({why}); copy it again or remove it")
