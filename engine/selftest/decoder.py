"""DALI's decoder on the GPU against Pillow's."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image

from eblvm.engine.data.pictures.stream import gpu_of
from eblvm.engine.selftest.finding import Measured, SelfCheck


def decoder(device: str) -> Iterator[SelfCheck]:
    """Yield the check, if DALI is installed."""
    if importlib.util.find_spec("nvidia") and importlib.util.find_spec("nvidia.dali"):
        yield SelfCheck("DALI's decoder against Pillow's", partial(difference, device))


def difference(device: str) -> Measured:
    import nvidia.dali as dali

    ramp = np.add.outer(np.arange(64), np.arange(64))[..., None].repeat(3, 2).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "JPEG", quality=95)
    encoded = np.frombuffer(buffer.getvalue(), np.uint8)
    place = "cpu" if device == "cpu" else "mixed"

    @dali.pipeline_def(batch_size=1, num_threads=1, device_id=gpu_of(torch.device(device)))  # type: ignore[untyped-decorator]
    def decode() -> Any:
        (images,) = dali.fn.external_source(source=lambda: [[encoded]], num_outputs=1, batch=True)
        return dali.fn.decoders.image(images, device=place)

    pipeline = decode()
    pipeline.build()
    (images,) = pipeline.run()
    host = images if device == "cpu" else images.as_cpu()
    image = np.asarray(host.as_array()[0], dtype=float)
    apart = np.abs(image - np.asarray(Image.open(buffer), dtype=float)).mean()
    return Measured(float(apart), 2.0, "levels of 255")
