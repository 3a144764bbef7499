"""Pictures of any size to squares of one: the centre is cut out and resized, by Pillow or by DALI, which agree."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from eblvm.engine.data.pictures import decoding
from eblvm.engine.errors import UserError

PIXEL_RULES = 2  # version of the rules for a picture's pixels; stores of different versions are not mixed
DALI_EXTRA = "pip install 'eblvm[dali]'"


class Framing(NamedTuple):
    size: int  # pixels of the result
    crop_fraction: float | None = None  # of the width that the centre crop keeps; None: the largest square


def box(width: int, height: int, crop_fraction: float | None) -> tuple[int, int, int]:
    """(left, top, side) of the centre crop."""
    side = min(width, height) if crop_fraction is None else max(1, min(math.floor(crop_fraction * width + 0.5), height))
    return (width - side) // 2, (height - side) // 2, side


class PillowDecoder:
    """Encoded pictures to uint8 [3, S, S]; in place of one that cannot be read, what is wrong with it."""

    name = "pillow"

    def __init__(self, framing: Framing):
        self.framing = framing

    def __call__(self, encoded: Sequence[bytes]) -> list[np.ndarray | str]:
        return [self._decode(content) for content in encoded]

    def _decode(self, content: bytes) -> np.ndarray | str:
        size, crop_fraction = self.framing
        try:
            pixels = decoding.rgb(content)
        except decoding.UnreadableError as error:
            return str(error)
        left, top, side = box(pixels.shape[1], pixels.shape[0], crop_fraction)
        square = pixels[top : top + side, left : left + side]
        # As in DALI the filter repeats the edge's pixels beyond it; Pillow alone would leave them out of the average.
        margin = math.ceil(side / size)
        padded = Image.fromarray(np.pad(square, ((margin, margin), (margin, margin), (0, 0)), mode="edge"))
        inner = (margin, margin, margin + side, margin + side)
        framed = np.asarray(padded.resize((size, size), Image.Resampling.BILINEAR, box=inner))
        return np.ascontiguousarray(framed.transpose(2, 0, 1))  # a convolution of another memory order rounds otherwise


class DaliDecoder:
    """The same, for a batch in DALI's threads; after a bad picture the batch is repeated one by one."""

    def __init__(self, framing: Framing, threads: int = 1, batch: int = 256):
        self.framing, self.threads, self.batch = framing, threads, batch
        self.name = f"dali {import_dali().__version__}"
        self._pipeline: Any = None

    def __call__(self, encoded: Sequence[bytes]) -> list[np.ndarray | str]:
        starts = range(0, len(encoded), self.batch)
        return [one for start in starts for one in self._decode(encoded[start : start + self.batch])]

    def _decode(self, encoded: Sequence[bytes]) -> list[np.ndarray | str]:
        problems = [decoding.problem(content) for content in encoded]
        good = [content for content, wrong in zip(encoded, problems, strict=True) if wrong is None]
        try:
            images = iter(self._run(good) if good else [])
        except RuntimeError:
            self._pipeline = None  # DALI's pipelines do not outlive an error
            if len(encoded) > 1:
                return [one for content in encoded for one in self._decode([content])]
            return PillowDecoder(self.framing)(encoded)  # DALI prints what is wrong and gives a number; Pillow says it
        return [next(images) if wrong is None else wrong for wrong in problems]

    def _run(self, encoded: Sequence[bytes]) -> np.ndarray:
        if self._pipeline is None:
            self._pipeline = self._build()
        self._pipeline.feed_input("encoded", [np.frombuffer(content, np.uint8) for content in encoded])
        (images,) = self._pipeline.run()
        return np.array(images.as_tensor())

    def _build(self) -> Any:
        dali = import_dali()

        @dali.pipeline_def(  # type: ignore[untyped-decorator]
            batch_size=self.batch, num_threads=self.threads, device_id=None, exec_pipelined=False, exec_async=False
        )
        def framed() -> Any:
            encoded = dali.fn.external_source(name="encoded", dtype=dali.types.UINT8, ndim=1)
            return dali_framed(encoded, self.framing)

        pipeline = framed()
        pipeline.build()
        return pipeline


Decoder = PillowDecoder | DaliDecoder


def dali_framed(encoded: Any, framing: Framing, mirror: Any = None, device: str = "cpu") -> Any:
    """The DALI graph from encoded pictures to uint8 [3, S, S], mirrored where `mirror` is 1."""
    dali = import_dali()
    fn, types = dali.fn, dali.types
    picture = fn.decoders.image(
        encoded, device="mixed" if device == "gpu" else "cpu", output_type=types.RGB, adjust_orientation=True,
        jpeg_fancy_upsampling=True,  # as libjpeg, and so Pillow
    )  # fmt: skip
    shape = fn.peek_image_shape(encoded, adjust_orientation=True, dtype=types.INT32)
    height, width = shape[0], shape[1]
    if framing.crop_fraction is None:
        side = dali.math.min(height, width)
    else:
        side = dali.math.min(fn.cast(dali.math.floor(width * framing.crop_fraction + 0.5), dtype=types.INT32), height)
        side = dali.math.max(side, 1)
    start = fn.stack((height - side) // 2, (width - side) // 2)
    square = fn.slice(picture, start=start, shape=fn.stack(side, side), axes=(0, 1))
    resized = fn.resize(square, size=(framing.size, framing.size), interp_type=types.INTERP_LINEAR, antialias=True)
    return fn.crop_mirror_normalize(
        resized, dtype=types.UINT8, output_layout="CHW", mean=0.0, std=1.0, mirror=0 if mirror is None else mirror
    )


def decoder_for(framing: Framing, threads: int = 1, name: str | None = None) -> Decoder:
    """'dali' or 'pillow'; no name: DALI where it is installed, Pillow otherwise."""
    if name == "dali" or (name is None and has_dali()):
        return DaliDecoder(framing, threads)
    return PillowDecoder(framing)


def has_dali() -> bool:
    try:
        import_dali()
    except UserError:
        return False
    return True


def import_dali() -> Any:
    """The package, with the parts in use loaded; an error that names the extra where it is missing."""
    try:
        import nvidia.dali
        import nvidia.dali.fn
        import nvidia.dali.math
        import nvidia.dali.types
    except ImportError as error:
        raise UserError(f"DALI cannot be imported ({error}); install the extra: {DALI_EXTRA}") from None
    return nvidia.dali
