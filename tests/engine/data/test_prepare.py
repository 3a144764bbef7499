"""Preparing a store: what it holds, resume after a kill, unreadable pictures, both decoders."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eblvm.engine.data.pictures import framing, prepare, store
from eblvm.engine.data.pictures.framing import DaliDecoder, Framing, PillowDecoder, has_dali
from eblvm.engine.data.readers import read
from eblvm.engine.errors import UserError

needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
DECODERS = ["pillow", pytest.param("dali", marks=needs_dali)]


def make(source: Path, folder: Path, **how: object) -> store.Store:
    how = {"size": 16, "decoder": "pillow", "say": lambda _: None, **how}
    return prepare.prepare(source, read(source), folder, **how)


def split_up(pictures: Path) -> None:
    names = sorted(path.name for path in pictures.iterdir())
    places = [0] * 10 + [1] * 8 + [2] * 6
    rows = "".join(f"{name} {place}\n" for name, place in zip(names, places, strict=True))
    (pictures / "list_eval_partition.txt").write_text(rows)
    rows = "".join(f"{name} {-1 if i % 3 else 1}\n" for i, name in enumerate(names))
    (pictures / "list_attr_celeba.txt").write_text(f"24\nBald\n{rows}")


def test_a_store_round_trips(pictures: Path, tmp_path: Path) -> None:
    split_up(pictures)
    made = make(pictures, tmp_path / "store")
    assert (made.manifest.count, made.manifest.shape) == (24, (3, 16, 16))
    assert made.manifest.splits == {"train": (0, 10), "valid": (10, 18), "test": (18, 24)}
    found = read(tmp_path / "store")
    assert found.kind == "store of CelebA, aligned faces"
    assert found.attributes == ("Bald",)
    decode = PillowDecoder(Framing(16, 140 / 178))
    for name, split in read(pictures).splits.items():
        expected = decode([path.read_bytes() for path in split.images.files])
        assert np.array_equal(found.splits[name].images, np.stack(expected))
        assert np.array_equal(found.splits[name].labels, split.labels)
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["images.u8", "labels.npy", "manifest.json"]


def test_arrays_are_prepared_too(cifar: dict, tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **cifar)
    make(tmp_path / "set.npz", tmp_path / "store", size=None)
    found = read(tmp_path / "store").splits
    for name in ("train", "test"):
        assert np.array_equal(found[name].images.transpose(0, 2, 3, 1), cifar[f"x_{name}"])
        assert np.array_equal(found[name].labels, cifar[f"y_{name}"])


class KilledError(Exception):
    pass


@pytest.mark.parametrize("chunks", range(8))
def test_an_interrupted_preparation_continues(
    chunks: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after any number of chunks, with what the last one wrote left behind it, the store is the same."""
    split_up(pictures)
    (pictures / "000002.jpg").write_bytes(b"no picture")
    (pictures / "000024.jpg").write_bytes(b"no picture")
    monkeypatch.setattr(prepare, "CHUNK", 4)
    whole = make(pictures, tmp_path / "whole", skip_limit=0.1)
    record, done = prepare.record_progress, []

    def killed(*arguments: object) -> None:
        if len(done) == chunks:
            raise KilledError
        done.append(record(*arguments))

    monkeypatch.setattr(prepare, "record_progress", killed)
    with monkeypatch.context() as m:
        m.setattr(store, "write_manifest", lambda *_: (_ for _ in ()).throw(KilledError))
        with pytest.raises(KilledError):
            make(pictures, tmp_path / "parts", skip_limit=0.1)
    with (tmp_path / "parts" / store.IMAGES).open("ab") as file:
        file.write(b"half a picture")
    monkeypatch.setattr(prepare, "record_progress", record)
    parts = make(pictures, tmp_path / "parts", skip_limit=0.1)
    assert parts.manifest == whole.manifest
    assert np.array_equal(parts.images, whole.images)
    assert np.array_equal(parts.labels, whole.labels)
    assert [one["name"] for one in parts.manifest.skipped] == ["000002.jpg", "000024.jpg"]
    assert parts.manifest.splits == {"train": (0, 9), "valid": (9, 17), "test": (17, 22)}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_unreadable_pictures_are_named_skipped_and_recorded(
    damage: str, decoder: str, pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = pictures / "000007.jpg"
    content = bad.read_bytes()
    bad.write_bytes({"truncated": content[: len(content) // 2], "garbage": b"no picture", "empty": b""}[damage])
    said: list[str] = []
    made = make(pictures, tmp_path / "store", decoder=decoder, skip_limit=0.05, say=said.append)
    assert made.manifest.count == 23
    (skipped,) = made.manifest.skipped
    assert skipped["name"] == "000007.jpg"
    assert skipped["reason"]
    assert "0x" not in skipped["reason"]
    assert said == [f"skipped 000007.jpg: {skipped['reason']}"]
    decode = framing.PillowDecoder(Framing(16, 140 / 178))
    kept = [path.read_bytes() for path in sorted(pictures.glob("*.jpg")) if path != bad]
    assert np.abs(made.images.astype(int) - np.stack(decode(kept))).max() <= 1
    with pytest.raises(UserError, match=r"000007.jpg cannot be read .* 1 of 24 .* at most 0 may be"):
        make(pictures, tmp_path / "strict", decoder=decoder, skip_limit=0.04)


@needs_dali
@pytest.mark.parametrize("crop_fraction", [None, 140 / 178])
@pytest.mark.parametrize("size", [16, 32, 64, 128])
def test_dali_and_pillow_agree(size: int, crop_fraction: float | None, pictures: Path, tmp_path: Path) -> None:
    """The decoded pixels are the same; resizing rounds differently, by one level at most."""
    encoded = [path.read_bytes() for path in sorted(pictures.glob("*.jpg"))]
    for i, mode in enumerate(("L", "RGB", "RGBA")):
        Image.new(mode, (50 + i, 41)).save(tmp_path / "picture.png")
        encoded.append((tmp_path / "picture.png").read_bytes())
    pillow, dali = (
        np.stack(decode(encoded)) for decode in (d(Framing(size, crop_fraction)) for d in (PillowDecoder, DaliDecoder))
    )
    difference = np.abs(pillow.astype(int) - dali)
    assert difference.max() <= 1
    assert difference.mean() < 0.3


def test_a_decoder_that_is_asked_for_is_not_replaced(pictures: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert make(pictures, tmp_path / "store", decoder=None).manifest.settings["decoder"] == "pillow"
    with pytest.raises(UserError, match=r"pip install 'eblvm\[dali\]'"):
        make(pictures, tmp_path / "other", decoder="dali")


def test_a_store_of_something_else_is_left_alone(pictures: Path, tmp_path: Path) -> None:
    make(pictures, tmp_path / "store")
    before = (tmp_path / "store" / store.MANIFEST).read_bytes()
    make(pictures, tmp_path / "store")
    with pytest.raises(UserError, match="is a store of another source or other settings"):
        make(pictures, tmp_path / "store", size=32)
    assert (tmp_path / "store" / store.MANIFEST).read_bytes() == before
    with pytest.raises(UserError, match="exists and is not a store; nothing was overwritten"):
        make(pictures, pictures)
    with pytest.raises(UserError, match="give the size of the squares to make"):
        make(pictures, tmp_path / "new", size=None)


def test_a_damaged_store_is_named(pictures: Path, tmp_path: Path) -> None:
    folder = make(pictures, tmp_path / "store").folder
    manifest = json.loads((folder / store.MANIFEST).read_text())
    with (folder / store.IMAGES).open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"images.u8 has 1000 bytes, expected 18432 by its manifest"):
        read(folder)
    (folder / store.MANIFEST).write_text(json.dumps(manifest | {"version": 99}))
    with pytest.raises(UserError, match="has version 99, expected 1; prepare the store again"):
        read(folder)
    (folder / store.MANIFEST).write_text("{}")
    with pytest.raises(UserError, match=r"manifest.json has version None"):
        read(folder)
    (folder / store.MANIFEST).write_text("[")
    with pytest.raises(UserError, match=r"manifest.json is not the manifest of a store"):
        read(folder)
