"""Pictures of every kind: the right pixels, and the same ones from Pillow and DALI."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from eblvm.engine.data.input import open_input
from eblvm.engine.data.pictures import decoding as pictures
from eblvm.engine.data.pictures.framing import DaliDecoder, Framing, PillowDecoder, has_dali
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.image_sets import read_images
from eblvm.engine.recipes import recipe

from .picture_cases import CASES, Case, chunk, png, saved

needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
by_name = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def centre(case: Case) -> np.ndarray:
    """[3, S, S] of the largest square; at that size nothing is resized."""
    height, width, _ = case.pixels.shape
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return case.pixels[top : top + side, left : left + side].transpose(2, 0, 1)


@by_name
def test_pillow_gives_the_known_pixels(case: Case) -> None:
    found = pictures.rgb(case.content)
    assert found.shape == case.pixels.shape
    assert np.array_equal(found, case.pixels)
    (framed,) = PillowDecoder(Framing(min(case.pixels.shape[:2])))([case.content])
    assert np.array_equal(framed, centre(case))


@needs_dali
@by_name
def test_dali_gives_the_same_pixels(case: Case) -> None:
    """To the bit where nothing is resized, within a level where it is."""
    side = min(case.pixels.shape[:2])
    for size, largest in ((side, 0), (16, 1)):
        pillow, dali = (decoder(Framing(size))([case.content])[0] for decoder in (PillowDecoder, DaliDecoder))
        assert np.abs(pillow.astype(int) - dali).max() <= largest


@needs_dali
def test_all_sixteen_bit_levels_agree() -> None:
    levels = np.arange(65536, dtype=">u2").reshape(256, 256)
    content = png(levels.view(np.uint8).reshape(256, -1), 256, 16, 0)
    expected = np.round(np.arange(65536) / 257).astype(np.uint8).reshape(256, 256)
    for decoder in (PillowDecoder, DaliDecoder):
        (found,) = decoder(Framing(256))([content])
        assert np.array_equal(found, np.stack([expected] * 3))


@needs_dali
def test_cmyk_of_others_than_adobe_is_not_inverted() -> None:
    (case,) = (case for case in CASES if case.name == "cmyk")
    place = case.content.index(b"\xff\xee\x00\x0eAdobe")
    content = case.content[:place] + case.content[place + 16 :]
    pillow, dali = (decoder(Framing(30))([content])[0] for decoder in (PillowDecoder, DaliDecoder))
    assert np.array_equal(pillow, dali)
    assert np.abs(pillow.astype(int) - centre(case)).max() > 100


def test_evaluation_reads_pictures_by_the_same_rule(tmp_path: Path) -> None:
    for case in CASES:
        path = tmp_path / case.name
        path.mkdir()
        (path / "picture.png").write_bytes(case.content)
        (found,) = read_images(path, (3, *case.pixels.shape[:2]))
        assert torch.equal(found.permute(1, 2, 0), torch.tensor(pictures.rgb(case.content))), case.name


@pytest.mark.parametrize("decoder", [PillowDecoder, pytest.param(DaliDecoder, marks=needs_dali)])
def test_what_is_no_picture_is_told(decoder: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture beyond the limit, an animation, a format that only one decoder knows, and damage."""
    large = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0))
    large += chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    animated = saved(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    broken = bytearray(CASES[0].content)
    broken[60] ^= 255
    cases = {
        b"": "it is empty",
        large: "it has 20000x20000 pixels, the limit is 100,000,000; if you trust it, set EBLVM_MAX_PIXELS=400000000",
        animated: "it is an animation",
        saved(frames[0], "GIF"): "cannot identify image file",
        bytes(broken): "",
    }
    found = decoder(Framing(8))(list(cases))
    for got, expected in zip(found, cases.values(), strict=True):
        assert isinstance(got, str)
        assert expected in got
        assert "\n" not in got
    monkeypatch.setenv("EBLVM_MAX_PIXELS", "60")
    (told,) = decoder(Framing(8))([saved(frames[0], "PNG")])
    assert "it has 8x8 pixels, the limit is 60" in str(told)


@needs_dali
def test_a_stream_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "faces"
    folder.mkdir()
    for i in range(24):
        side = 300 if i == 5 else 20
        Image.new("RGB", (side, side)).save(folder / f"{i:02}.png")
    config = recipe("celeba32").replaced(data=str(folder), cache=str(tmp_path / "cache"), batch=8, input="dali")
    batches = open_input(config.dataset, config.load_data(), torch.tensor(1), config.optimisation.batch)
    monkeypatch.setenv("EBLVM_MAX_PIXELS", "1000")
    with pytest.raises(
        UserError, match=r"05.png cannot be read as a picture \(it has 300x300 pixels, the limit is 1,000"
    ):
        [batches.batch(step) for step in range(3)]


def test_a_broken_orientation_is_none() -> None:
    exif = b"Exif\0\0" + b"MM\0*\xff\xff\xff\xff" + b"\0" * 20
    content = saved(Image.new("RGB", (9, 5)), "JPEG", exif=exif)
    assert pictures.rgb(content).shape == (5, 9, 3)
