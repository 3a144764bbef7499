"""One encoded picture to RGB pixels, by one rule for every kind of file; DALI follows the same rule to the bit.

EXIF orientation is applied. Transparency is dropped, not blended: a pixel keeps the colour that the file gives it.
16 bits become 8 by x / 257, rounded, so that 65535 is 255. A palette gives its colours, grey three equal channels. CMYK
becomes (255 - C)(255 - K) / 255, rounded down. Colour profiles and gamma are not applied.
"""

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from PIL import Image

from eblvm.engine.damage import DAMAGE
from eblvm.engine.data import limits
from eblvm.engine.errors import reason

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")  # what both decoders read, whatever the file's suffix says
ORIENTATION = 0x0112  # EXIF's tag
GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 4, 6  # PNG's colour types
# Pillow's names of what follows a high byte.
LOW_BYTES = {GREY_ALPHA: "RGBA", COLOUR: "RGB;16L", COLOUR_ALPHA: "RGBA;16L"}


class UnreadableError(Exception):
    """A picture that cannot be used, and why."""


def opened(content: bytes) -> Image.Image:
    """The picture with its header read: of a known format, still, and within the limit of pixels."""
    if not content:
        raise UnreadableError("it is empty")
    with _explained():
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    if told := limits.too_many_pixels(*picture.size):
        raise UnreadableError(told)
    if picture.format == "WEBP" and getattr(picture, "is_animated", False):
        raise UnreadableError("it is an animation")
    return picture


def problem(content: bytes) -> str | None:
    """The fault of a picture as far as its header tells; None if it has none."""
    size = _png_size(content) or _jpeg_size(content)
    if size is not None:  # without Pillow, whose own check costs a sixth of the time in which DALI decodes
        return limits.too_many_pixels(*size)
    try:
        opened(content)
    except UnreadableError as error:
        return str(error)
    return None


def _png_size(content: bytes) -> tuple[int, int] | None:
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR" or len(content) < 24:
        return None
    width, height = struct.unpack_from(">II", content, 16)
    return width, height


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    """By the first frame header, C0 to CF without the tables C4, C8 and CC. Segments are skipped by their lengths."""
    if not content.startswith(b"\xff\xd8"):
        return None
    place = 2
    while place + 9 <= len(content) and content[place] == 0xFF:
        kind = content[place + 1]
        if kind == 0xFF:  # padding
            place += 1
            continue
        if kind in (0x01, 0xDA) or 0xD0 <= kind <= 0xD9:  # without a length, or the pixels already: leave it to Pillow
            return None
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", content, place + 5)
            return width, height
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return None


def rgb(content: bytes) -> np.ndarray:
    """uint8 [height, width, 3]."""
    picture = opened(content)
    with _explained():
        return oriented(_colours(picture, content), _orientation(picture))


def _colours(picture: Image.Image, content: bytes) -> np.ndarray:
    if picture.format == "PNG" and content[24] == 16:
        wide = _sixteen_bits(picture, content)
        return np.broadcast_to((wide + 128) // 257, (*wide.shape[:2], 3)).astype(np.uint8)
    if picture.mode == "CMYK":
        ink = np.asarray(picture).astype(np.uint16)
        # Pillow reads every such file as one of Adobe's, which are inverted.
        light = 255 - ink if "adobe" in picture.info else ink
        return (light[..., :3] * light[..., 3:] // 255).astype(np.uint8)
    picture.info.pop("transparency", None)
    return np.asarray(picture.convert("RGB"))


def _sixteen_bits(picture: Image.Image, content: bytes) -> np.ndarray:
    """uint32 [height, width, 1 or 3] of a PNG. Pillow gives the high bytes of such colours, so it reads twice."""
    kind = content[25]
    if kind == GREY:
        return np.asarray(picture).astype(np.uint32)[..., None]
    again = opened(content)
    again.tile = [tile._replace(args=LOW_BYTES[kind]) for tile in again.tile]  # type: ignore[attr-defined]
    low = np.asarray(again).astype(np.uint32)
    if kind == GREY_ALPHA:  # its four bytes
        return low[..., :1] * 256 + low[..., 1:2]
    return np.asarray(picture).astype(np.uint32)[..., :3] * 256 + low[..., :3]


def _orientation(picture: Image.Image) -> int:
    """By EXIF alone; Pillow's own function also looks into XMP, DALI does not."""
    try:
        (exif := Image.Exif()).load(picture.info.get("exif", b""))
        orientation = exif.get(ORIENTATION, 1)
    except DAMAGE:  # the pixels do not depend on it
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def oriented(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Pixels [height, width, 3] as EXIF's `orientation`, 1 to 8, says they are to be seen."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise Pillow's errors as `UnreadableError`. Its own limit of pixels is off inside: ours is checked apart."""
    before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about transparency, broken EXIF and the like
            yield
    except DAMAGE as error:
        raise UnreadableError(reason(error).partition(" <")[0]) from None  # Pillow names the buffer by its address
    finally:
        Image.MAX_IMAGE_PIXELS = before
