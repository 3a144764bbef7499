"""Training pictures straight from their files, decoded ahead by DALI while a step computes, for sets beyond memory.

DALI decides nothing: which pictures a step sees, in which order and which are mirrored comes from `Order` and Philox
through the external source. So a stream gives what memory would give, and resumes exactly.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.engine.data.framing import DALI_EXTRA, Framing, PillowDecoder, dali_framed, decoder_for, import_dali
from eblvm.engine.data.pictures import problem
from eblvm.engine.errors import UserError, printable, reason

Choose = Callable[[int], tuple[Tensor, Tensor]]  # step -> the indices [B] of its pictures, and which are mirrored
HEAD = 1 << 14  # bytes of a file in which its size in pixels stands as a rule
PREFETCH = 2  # minibatches decoded ahead


class PicturesOnDemand:
    """Stands for the tensor uint8 [n, 3, S, S] of a set of pictures; rows are decoded when they are indexed."""

    dtype = torch.uint8

    def __init__(self, paths: list[Path], framing: Framing, device: str = "cpu"):
        self.paths, self.framing, self.device = paths, framing, torch.device(device)
        self.shape = torch.Size((len(paths), 3, framing.size, framing.size))

    def __len__(self) -> int:
        return len(self.paths)

    def dim(self) -> int:
        return len(self.shape)

    def to(self, device: str) -> "PicturesOnDemand":
        return PicturesOnDemand(self.paths, self.framing, device)

    def __getitem__(self, places: slice | Tensor) -> Tensor:
        if isinstance(places, slice):
            places = torch.arange(len(self))[places]
        paths = [self.paths[i] for i in places.flatten().tolist()]
        images = decoder_for(self.framing)([path.read_bytes() for path in paths])
        for path, image in zip(paths, images, strict=True):
            if isinstance(image, str):
                raise unreadable(path, image)
        rows = torch.from_numpy(np.stack([np.asarray(image) for image in images]))
        return rows.view(*places.shape, *self.shape[1:]).to(self.device)


class Stream:
    """Minibatches uint8 [B, 3, S, S] of consecutive steps. `state` is what a checkpoint needs, and `restore` takes."""

    def __init__(self, pictures: PicturesOnDemand, choose: Choose, batch: int, threads: int = 1):
        self.dali = import_dali()
        self.pictures, self.choose, self.batch, self.threads = pictures, choose, batch, threads
        self.names = name_rows(pictures.paths)
        self._seen = np.zeros(len(pictures), bool)
        self._pipeline: Any = None
        self._first = 0  # the step of the pipeline's first iteration
        self._next = 0  # the step of the minibatch that it gives next

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

    def _build(self, checkpoint: bytes | None) -> Any:
        dali, device = self.dali, self.pictures.device
        place = "gpu" if device.type == "cuda" else "cpu"

        @dali.pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=self.batch,
            num_threads=self.threads,
            device_id=gpu_of(device),
            prefetch_queue_depth=PREFETCH,
            enable_checkpointing=True,
            checkpoint=checkpoint,
        )
        def streaming() -> Any:
            names, mirror = dali.fn.external_source(
                source=Chosen(self.names, self.choose, self._first, self._see),
                num_outputs=2,
                batch=True,
                batch_info=True,
                dtype=[dali.types.UINT8, dali.types.INT32],
                ndim=[1, 0],
            )
            return dali_framed(dali.fn.io.file.read(names), self.pictures.framing, mirror, place)

        pipeline = streaming()
        pipeline.build()
        return pipeline

    def _see(self, places: list[int]) -> None:
        """Hold every picture's header against the limits before DALI decodes it for the first time."""
        for i in places:
            if not self._seen[i]:
                path = self.pictures.paths[i]
                if not path.is_file():
                    raise UserError(f"{printable(path)} has gone since the run began; put it back")
                with path.open("rb") as file:
                    content = file.read(HEAD)
                    if problem(content) is not None:
                        content += file.read()
                if (wrong := problem(content)) is not None:
                    raise unreadable(path, wrong)
                self._seen[i] = True

    def _tensor(self, images: Any) -> Tensor:
        from nvidia.dali.plugin.pytorch import feed_ndarray

        out = torch.empty((self.batch, *self.pictures.shape[1:]), dtype=torch.uint8, device=self.pictures.device)
        stream = torch.cuda.current_stream(out.device) if out.is_cuda else None
        feed_ndarray(images.as_tensor(), out, cuda_stream=stream)
        return out

    def _explained(self, step: int, error: Exception) -> Exception:
        """DALI does not say which picture it was; Pillow does. The pipeline may have been ahead of `step`."""
        decode = PillowDecoder(self.pictures.framing)
        for ahead in range(step, step + PREFETCH + 1):
            for path in (self.pictures.paths[i] for i in self.choose(ahead)[0].tolist()):
                if not path.is_file():
                    return UserError(f"{printable(path)} has gone since the run began; put it back")
                (found,) = decode([path.read_bytes()])
                if isinstance(found, str):
                    return unreadable(path, found)
        return UserError(f"DALI cannot decode a picture of step {step} ({reason(error)}); remove --input dali")


def gpu_of(device: torch.device) -> int | None:
    """The number that DALI takes; none for the CPU, where a number would be a GPU's."""
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


class Chosen:
    """The external source: a function of the iteration alone, which is what DALI can checkpoint."""

    def __init__(self, names: np.ndarray, choose: Choose, first: int, see: Callable[[list[int]], None]):
        self.names, self.choose, self.first, self.see = names, choose, first, see

    def __call__(self, info: Any) -> tuple[np.ndarray, np.ndarray]:
        places, mirrored = self.choose(self.first + info.iteration)
        self.see(places.tolist())
        return self.names[places.numpy()], mirrored.int().numpy()


def name_rows(paths: list[Path]) -> np.ndarray:
    """Absolute names as bytes [n, L]; shorter ones begin with more slashes, which mean one.

    The main thread hands them over in every step, and a list of arrays would take it longer than one array.
    """
    names = [os.fsencode(path.absolute()) for path in paths]
    longest = max(map(len, names))
    return np.frombuffer(b"".join(name.rjust(longest, b"/") for name in names), np.uint8).reshape(len(names), longest)


def unreadable(path: Path, why: str) -> UserError:
    return UserError(f"{printable(path)} cannot be read as a picture ({why}); copy it again or remove it")
