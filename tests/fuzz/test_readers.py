"""Files of every format, damaged in every way: they give images or one line, and never another exception."""

import gzip
import io
import json
import os
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from eblvm.engine.data.contents import Contents, Pictures
from eblvm.engine.data.pictures.framing import DaliDecoder, Framing, PillowDecoder, has_dali
from eblvm.engine.data.readers import read
from eblvm.engine.evaluation.image_sets import read_images
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import read_rows

from .hostile_pickles import good
from .properties import bounded, read_or_refused

needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
PIXELS = (np.arange(24 * 8 * 6 * 3) % 251).astype(np.uint8)


@cache
def corpus() -> dict[str, dict[str, bytes]]:
    """Return a small valid file or folder of every format: {title: {name: content}}."""
    with TemporaryDirectory() as name:
        folder = Path(name)

        def content(path: str) -> bytes:
            return (folder / path).read_bytes()

        images = PIXELS.reshape(24, 8, 6, 3)
        np.savez(folder / "plain.npz", x=images)
        np.savez_compressed(folder / "packed.npz", x_train=images, y_train=np.arange(24), x_test=images[:3])
        np.save(folder / "x.npy", images)
        faces = np.zeros((560, 5), np.uint8)
        savemat(folder / "frey_rawface.mat", {"ff": faces})
        savemat(folder / "packed.mat", {"ff": faces}, do_compression=True)
        savemat(folder / "four.mat", {"ff": faces}, format="4")
        savemat(folder / "svhn.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones((4, 1), np.uint8)})
        digits = np.arange(5 * 28 * 28).astype(np.uint8)
        idx = {
            "images-idx3-ubyte": b"\0\0\x08\3\0\0\0\5\0\0\0\x1c\0\0\0\x1c" + digits.tobytes(),
            "labels-idx1-ubyte": b"\0\0\x08\1\0\0\0\5\0\1\2\3\4",
        }
        mnist = {f"{split}-{name}": content for split in ("train", "t10k") for name, content in idx.items()}
        batches = {f"data_batch_{i}": good(2)[0] for i in range(1, 6)} | {"test_batch": good(4)[0]}
        binary = {f"{name}.bin": bytes(3073 * 2) for name in batches}
        buffer, jpeg, png = io.BytesIO(), io.BytesIO(), io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for name, data in batches.items():
                member = tarfile.TarInfo(f"cifar/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        Image.fromarray(images[0]).save(jpeg, "JPEG", exif=Image.Exif())
        Image.fromarray(images[1]).save(png, "PNG")
        faces = {f"{i}.{suffix}": data.getvalue() for i in range(3) for suffix, data in (("jpg", jpeg), ("png", png))}
        places = "".join(f"{name} {i % 3}\n" for i, name in enumerate(faces)).encode()
        rows = f"{len(faces)}\nBald Old\n" + "".join(f"{name} 1 -1\n" for name in faces)
        manifest = {
            "kind": "faces", "count": 24, "shape": [3, 8, 6], "splits": {"train": [0, 20], "test": [20, 24]},
            "source": {}, "settings": {}, "skipped": [], "attributes": [], "published": None, "version": 1,
        }  # fmt: skip
        labels = io.BytesIO()
        np.save(labels, np.arange(24))
        return {
            "npz": {"set.npz": content("plain.npz")},
            "npz packed": {"set.npz": content("packed.npz")},
            "npy": {"set.npy": content("x.npy")},
            "mat": {"frey_rawface.mat": content("frey_rawface.mat")},
            "mat packed": {"frey_rawface.mat": content("packed.mat")},
            "mat 4": {"frey_rawface.mat": content("four.mat")},
            "svhn": {"train_32x32.mat": content("svhn.mat"), "test_32x32.mat": content("svhn.mat")},
            "mnist": mnist,
            "mnist packed": {f"{name}.gz": gzip.compress(data) for name, data in mnist.items()},
            "cifar": batches,
            "cifar binary": binary,
            "cifar archive": {"cifar-10-python.tar.gz": buffer.getvalue()},
            "pictures": faces,
            "celeba": faces | {"list_eval_partition.txt": places, "list_attr_celeba.txt": rows.encode()},
            "store": {
                "manifest.json": json.dumps(manifest).encode(), "images.u8": PIXELS.tobytes(),
                "labels.npy": labels.getvalue(),
            },
        }  # fmt: skip


TITLES = [
    "npz", "npz packed", "npy", "mat", "mat packed", "mat 4", "svhn", "mnist", "mnist packed", "cifar", "cifar binary",
    "cifar archive", "pictures", "celeba", "store",
]  # fmt: skip
INTERESTING = [0, 1, 0x7F, 0x80, 0xFE, 0xFF, ord("0"), ord("9"), ord("-"), ord("{"), ord("\n")]


@st.composite
def damage(draw: st.DrawFn, content: bytes, reach: int = 600) -> bytes:
    """Draw a copy with some of the first or last `reach` bytes replaced, cut, repeated or zeroed, or the end lost."""
    made = bytearray(content)
    for _ in range(draw(st.integers(1, 5))):
        if not made:
            break
        place = draw(st.integers(0, min(len(made) - 1, reach)))
        place = len(made) - 1 - place if draw(st.booleans()) else place
        kind = draw(st.sampled_from(("byte", "flip", "number", "cut", "repeat", "zeros", "end")))
        if kind == "byte":
            made[place] = draw(st.sampled_from(INTERESTING) | st.integers(0, 255))
        elif kind == "flip":
            made[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "number":
            made[place : place + 4] = draw(st.sampled_from((0, 1, 2**31 - 1, 2**31, 2**32 - 1))).to_bytes(4, "little")
        elif kind == "cut":
            del made[place : place + draw(st.integers(1, 64))]
        elif kind == "repeat":
            made[place:place] = made[place : place + draw(st.integers(1, 64))]
        elif kind == "zeros":
            made[place : place + 64] = bytes(64)
        else:
            del made[place:]
    return bytes(made)


def unpacked(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def looked_at(contents: Contents | str) -> None:
    """Use a result as training does, to the last pixel."""
    if isinstance(contents, str):
        return
    for split in contents.splits.values():
        assert len(split.images)
        if isinstance(split.images, Pictures):
            PillowDecoder(Framing(4))([path.read_bytes() for path in split.images.files])
        else:
            assert split.images.dtype == np.uint8
            assert split.images.ndim == 4
            int(split.images.sum())
        if split.labels is not None:
            assert len(split.labels) == len(split.images)
    read_or_refused(contents.divided)


@pytest.mark.parametrize("title", TITLES)
def test_the_corpus_is_sound(title: str, tmp_path: Path) -> None:
    contents = read(unpacked(tmp_path, corpus()[title]) if len(corpus()[title]) > 1 else next(paths(tmp_path, title)))
    looked_at(contents)


def paths(folder: Path, title: str):
    return (unpacked(folder, corpus()[title]) / name for name in corpus()[title])


@pytest.mark.parametrize("title", TITLES)
@bounded
@given(data=st.data())
def test_damaged_files_are_read_or_refused(title: str, data: st.DataObject) -> None:
    files = dict(corpus()[title])
    name = data.draw(st.sampled_from(sorted(files)))
    files[name] = data.draw(damage(files[name]))
    with TemporaryDirectory() as folder:
        path = unpacked(Path(folder), files)
        looked_at(read_or_refused(lambda: read(path if data.draw(st.booleans()) else path / name)))


@bounded
@given(
    st.sampled_from(["x.npz", "x.npy", "x.mat", "data_batch_1", "x.tar.gz", "train-images-idx3-ubyte", "x"]), st.data()
)
def test_any_bytes_are_read_or_refused(name: str, data: st.DataObject) -> None:
    magic = (b"", b"PK\3\4", b"\x93NUMPY\1\0", b"MATLAB 5.0", b"\0\0\x08\3", b"\x1f\x8b\x08\0", b"BZh9", b"\xfd7zXZ\0")
    content = data.draw(st.sampled_from(magic)) + data.draw(st.binary(max_size=400))
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        looked_at(read_or_refused(lambda: read(Path(folder) / name)))


@bounded
@given(st.data())
def test_archives_of_damaged_arrays(data: st.DataObject) -> None:
    """Read archives with damaged content and correct checksums."""
    buffer = io.BytesIO()
    np.save(buffer, PIXELS.reshape(24, 8, 6, 3))
    content = data.draw(damage(buffer.getvalue(), reach=140))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "set.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", content)
        looked_at(read_or_refused(lambda: read(path)))
        read_or_refused(lambda: read_images(path, (3, 8, 6)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@bounded
@given(st.dictionaries(st.sampled_from(["count", "shape", "splits", "attributes", "kind", "version", "x"]), JSON))
def test_any_manifest_is_read_or_refused(changes: dict) -> None:
    files = dict(corpus()["store"])
    files["manifest.json"] = json.dumps(json.loads(files["manifest.json"]) | changes).encode()
    with TemporaryDirectory() as folder:
        looked_at(read_or_refused(lambda: read(unpacked(Path(folder), files))))


@bounded
@given(st.data())
def test_pictures_are_decoded_or_refused(data: st.DataObject) -> None:
    files = corpus()["pictures"]
    content = data.draw(damage(files[data.draw(st.sampled_from(sorted(files)))]))
    (decoded,) = PillowDecoder(Framing(4))([content])
    assert isinstance(decoded, str) or decoded.shape == (3, 4, 4)


@needs_dali
@bounded
@given(st.data())
def test_pictures_are_decoded_or_refused_by_dali(data: st.DataObject) -> None:
    files = corpus()["pictures"]
    content = data.draw(damage(files[data.draw(st.sampled_from(sorted(files)))]))
    (decoded,) = dali()([content])
    assert isinstance(decoded, str) or decoded.shape == (3, 4, 4)


@cache
def dali() -> DaliDecoder:
    return DaliDecoder(Framing(4))


@bounded
@given(st.data())
def test_tensors_are_read_or_refused(data: st.DataObject) -> None:
    buffer = io.BytesIO()
    torch.save(torch.zeros(2, 3, 8, 6), buffer)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "set.pt"
        path.write_bytes(data.draw(damage(buffer.getvalue())))
        read_or_refused(lambda: read_images(path, (3, 8, 6)))


@bounded
@given(st.data())
def test_a_damaged_checkpoint_is_passed_over(data: st.DataObject) -> None:
    """Damage the newest checkpoint's files: the older one is returned, or the complete newest one."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for step in (10, 20):
            checkpoint.save(folder, step, {"step": step, "w": torch.full((9,), float(step))}, keep=2)
        path = checkpoint.path_of(folder, 20)
        path = data.draw(st.sampled_from((path, checkpoint.digest_of(path))))
        path.write_bytes(data.draw(damage(path.read_bytes(), reach=2000)))
        newest, _ = checkpoint.newest(folder)
        assert newest is not None
        assert newest["w"].tolist() == [float(newest["step"])] * 9


@bounded
@given(st.data())
def test_a_damaged_log_gives_its_sound_rows(data: st.DataObject) -> None:
    rows = [{"step": step, "loss": step / 3} for step in range(1, 9)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stats.jsonl"
        path.write_bytes(data.draw(damage(content)))
        for row in read_rows(path):
            assert type(row["step"]) is int


@bounded
@given(st.lists(st.binary(min_size=1, max_size=20), min_size=3, max_size=6, unique=True))
def test_any_name_of_a_picture(names: list[bytes]) -> None:
    png = corpus()["pictures"]["0.png"]
    with TemporaryDirectory() as folder:
        for name in names:
            safe = name.translate(bytes.maketrans(b"/\0", b"__"))
            (Path(folder) / (os.fsdecode(safe) + ".png")).write_bytes(png)
        looked_at(read_or_refused(lambda: read(Path(folder))))
