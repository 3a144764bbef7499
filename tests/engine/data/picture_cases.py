"""Encoded pictures of every kind, each with the pixels that it must give."""

import io
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 30, 44


class Case(NamedTuple):
    name: str
    content: bytes
    pixels: np.ndarray  # uint8 [height, width, 3]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows: np.ndarray, width: int, depth: int, colour: int, extra: bytes = b"") -> bytes:
    """A PNG of packed rows [height, bytes]."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, len(rows), depth, colour, 0, 0, 0))
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def saved(picture: Image.Image, form: str, **how: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **how)
    return buffer.getvalue()


def waves(channels: int, top: int) -> np.ndarray:
    """Slow waves [HEIGHT, WIDTH, channels] over all of 0 .. top."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    planes = [np.sin(x / 9 + c) * np.cos(y / (7 + c)) for c in range(channels)]
    return np.round((np.stack(planes, -1) + 1) / 2 * top).astype(np.uint16)


def grey(plane: np.ndarray) -> np.ndarray:
    return np.repeat(plane.reshape(HEIGHT, -1, 1), 3, 2).astype(np.uint8)


def png_cases() -> list[Case]:
    wide, narrow = waves(4, 65535), waves(4, 255).astype(np.uint8)
    big, eight = wide.astype(">u2"), np.round(wide / 257).astype(np.uint8)

    def flat(planes: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(planes).reshape(HEIGHT, -1).view(np.uint8)

    palette = np.arange(48, dtype=np.uint8).reshape(16, 3) * 5
    places = (narrow[..., 0] // 16).astype(np.uint8)
    colours = chunk(b"PLTE", palette.tobytes())
    see_through = colours + chunk(b"tRNS", bytes([0, 128, 255, 3]))
    gamma, key = chunk(b"gAMA", struct.pack(">I", 100000)), chunk(b"tRNS", b"\0\1\0\2\0\3")
    bits = (narrow[..., 0] > 127).astype(np.uint8)
    return [
        Case("grey-16", png(flat(big[..., 0]), WIDTH, 16, 0), grey(eight[..., 0])),
        Case("grey-alpha-16", png(flat(big[..., :2]), WIDTH, 16, 4), grey(eight[..., 0])),
        Case("rgb-16", png(flat(big[..., :3]), WIDTH, 16, 2), eight[..., :3]),
        Case("rgba-16", png(flat(big), WIDTH, 16, 6), eight[..., :3]),
        Case("grey", png(flat(narrow[..., 0]), WIDTH, 8, 0), grey(narrow[..., 0])),
        Case("grey-alpha", png(flat(narrow[..., :2]), WIDTH, 8, 4), grey(narrow[..., 0])),
        Case("rgb", png(flat(narrow[..., :3]), WIDTH, 8, 2), narrow[..., :3]),
        Case("rgba", png(flat(narrow), WIDTH, 8, 6), narrow[..., :3]),
        Case("rgb-gamma", png(flat(narrow[..., :3]), WIDTH, 8, 2, gamma), narrow[..., :3]),
        Case("palette", png(flat(places), WIDTH, 8, 3, colours), palette[places]),
        Case("palette-alpha", png(flat(places), WIDTH, 8, 3, see_through), palette[places]),
        Case("one-bit", png(np.packbits(bits, 1), WIDTH, 1, 0), grey(bits * 255)),
        Case("rgb-colour-key", png(flat(narrow[..., :3]), WIDTH, 8, 2, key), narrow[..., :3]),
    ]  # fmt: skip


def jpeg_cases() -> list[Case]:
    """JPEG loses some of every picture, so what its ink gives is taken from the decoded ink."""
    cases = []
    for name, ink in (("cmyk", waves(4, 255)), ("cmyk-no-black", waves(4, 255) * np.array([1, 1, 1, 0]))):
        content = saved(Image.fromarray(ink.astype(np.uint8), "CMYK"), "JPEG", quality=95)
        with Image.open(io.BytesIO(content)) as file:
            light = 255 - np.asarray(file).astype(int)
        cases.append(Case(name, content, (light[..., :3] * light[..., 3:] // 255).astype(np.uint8)))
    for name, picture in (("jpeg", waves(3, 255)), ("jpeg-grey", waves(1, 255)[..., 0])):
        content = saved(Image.fromarray(picture.astype(np.uint8)), "JPEG", quality=95)
        with Image.open(io.BytesIO(content)) as file:
            cases.append(Case(name, content, np.asarray(file.convert("RGB"))))
    return cases


def turned(upright: np.ndarray, orientation: int) -> np.ndarray:
    """What a viewer shows, by the table of the EXIF standard."""
    return {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.transpose(1, 0, 2), 6: np.rot90(upright, -1), 7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, 1),
    }[orientation]  # fmt: skip


def oriented_cases() -> list[Case]:
    upright, cases = waves(3, 200).astype(np.uint8), []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        for form in ("PNG", "JPEG"):
            content = saved(Image.fromarray(upright), form, exif=exif)
            with Image.open(io.BytesIO(content)) as file:
                pixels = turned(np.asarray(file), orientation)
            cases.append(Case(f"{form.lower()}-exif-{orientation}", content, pixels))
    return cases


def other_cases() -> list[Case]:
    pixels = waves(3, 255).astype(np.uint8)
    return [
        Case("webp", saved(Image.fromarray(pixels), "WEBP", lossless=True), pixels),
        Case("bmp", saved(Image.fromarray(pixels), "BMP"), pixels),
    ]


CASES = [*png_cases(), *jpeg_cases(), *oriented_cases(), *other_cases()]
