"""Errors of libraries become one line with the file's name; lies about splits are refused; any name of a file works."""

import bz2
import json
import lzma
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from eblvm.engine.damage import damaged
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.input import open_input
from eblvm.engine.data.pictures import prepare, store
from eblvm.engine.data.pictures.framing import has_dali
from eblvm.engine.data.readers import read
from eblvm.engine.errors import UserError, printable, reason
from eblvm.engine.recipes import recipe

from .conftest import cifar_files, write_tar


def one_line(path: Path, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence) as told:
        read(path)
    assert "\n" not in str(told.value)
    assert path.name in str(told.value)


def test_a_bug_keeps_its_traceback() -> None:
    for error in (NameError, AssertionError, ImportError, KeyboardInterrupt):
        with pytest.raises(error), damaged("file", "is broken"):
            raise error
    told = r"^file is broken \(it claims more than the memory holds\); it may be truncated"
    with pytest.raises(UserError, match=told), damaged("file", "is broken"):
        raise MemoryError
    assert reason(ValueError("two\nlines")) == "two"
    assert reason(EOFError()) == "EOFError"


def test_packed_archives_that_break_off(cifar: dict, tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "cifar.tar.gz", cifar_files(cifar, binary=True)).read_bytes()
    for name, content in {
        "cifar.tar.xz": lzma.compress(plain)[:-40],
        "cifar.tar.bz2": bz2.compress(plain)[:-40],
        "flipped.tar.gz": plain[:200] + bytes(50) + plain[250:],
        "head.tar.gz": plain[:11],
    }.items():
        (tmp_path / name).write_bytes(content)
        one_line(tmp_path / name, "cannot be unpacked|which is none of")


def test_archives_of_arrays_that_are_none(cifar: dict, tmp_path: Path) -> None:
    path = tmp_path / "set.npz"

    def archive(name: str, content: bytes, method: int | None = None, flag: int = 0) -> None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(name, content)
        if method is not None or flag:
            data = bytearray(path.read_bytes())
            for place in (data.index(b"PK\x03\x04") + 6, data.index(b"PK\x01\x02") + 8):
                data[place] |= flag
                data[place + 2] = data[place + 2] if method is None else method
            path.write_bytes(data)

    good = (
        b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 1), }".ljust(117) + b"\n"
    )
    headers = {
        "not npy": b"hello, world",
        "tokens": good.replace(b"(1, 1, 1), }", b"(1, 1, 1, \x00 "),
        "braces": good.replace(b"(1, 1, 1), }", b"(((((((((((("),
        "unicode": good.replace(b"'|u1'", b"'\xff\xfe'"),
        "type": good.replace(b"'|u1'", b"'q!'"),
        "short": good[:20],
        "version": good.replace(b"\x01\x00v", b"\x09\x00v"),
        "attribute": good.replace(b"'|u1'", b"[[],]"),
    }
    for name, header in headers.items():
        archive("x.npy", header + b"a")
        with pytest.raises(UserError, match=r"set.npz") as told:
            read(path)
        assert "\n" not in str(told.value), name
        (tmp_path / "set.npy").write_bytes(header + b"a")
        with pytest.raises(UserError, match=r"set.npy"):
            read(tmp_path / "set.npy")
    archive("x.npy", good + b"a", flag=1)
    one_line(path, "cannot be read as .npz .*encrypted")
    archive("x.npy", good + b"a", method=99)
    one_line(path, "cannot be read as .npz .*compression")
    np.savez_compressed(path, x=cifar["x_train"])
    content = bytearray(path.read_bytes())
    content[200:230] = bytes(30)
    path.write_bytes(content)
    one_line(path, "cannot be read as .npz")


def test_matlab_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "frey_rawface.mat"
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n")
    one_line(path, "is a MATLAB 7.3 file .* save -v7")
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    one_line(path, "is a MATLAB 7.3 file")
    for content in (b"\0" * 200, b"MATLAB 5.0 MAT-file", b"MATLAB 5.0 MAT-file".ljust(126) + b"\0\1IM" + b"\xff" * 60):
        path.write_bytes(content)
        one_line(path, "cannot be read as a MATLAB file|got keys")
    cell = np.empty((1, 1), object)
    cell[0, 0] = np.zeros(3)
    for value, kind in ((cell, "cell"), ({"a": 1}, "struct"), ("words", "char")):
        savemat(path, {"ff": value})
        one_line(path, f"got 'ff' of MATLAB's class {kind}, expected an array of numbers")
    for name, labels in {"nan": np.full((1, 1), np.nan), "far": np.full((1, 1), 1000)}.items():
        for split in ("train", "test"):
            savemat(tmp_path / f"{split}_32x32.mat", {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": labels})
        with pytest.raises(UserError, match=r"train_32x32.mat: got labels from"):
            read(tmp_path / "train_32x32.mat")
        assert name


def test_cells_within_cells_are_not_followed(tmp_path: Path) -> None:
    """scipy descends without a limit of its own."""

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)

    def cell(name: bytes, content: bytes) -> bytes:
        head = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, name)
        return element(14, head + content)

    nested = b""
    for _ in range(3000):  # its length grows with the square of the depth in time, not in bytes
        nested = cell(b"", nested)
    path = tmp_path / "frey_rawface.mat"
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + cell(b"ff", nested))
    one_line(path, "got 'ff' of MATLAB's class cell")


def test_empty_and_small_sets(cifar: dict, tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz", x_train=cifar["x_train"], x_test=cifar["x_test"][:0])
    one_line(tmp_path / "empty.npz", "has no images in 'test'")
    np.savez(tmp_path / "flat.npz", x=np.zeros((5, 0, 3), np.uint8))
    one_line(tmp_path / "flat.npz", "has no images in 'all'")
    np.save(tmp_path / "none.npy", np.zeros((0, 3, 3), np.uint8))
    one_line(tmp_path / "none.npy", "has no images")
    for count in (1, 2):
        np.savez(tmp_path / "two.npz", x=cifar["x_train"][:count])
        with pytest.raises(
            UserError, match=rf"two.npz has {count} images, expected at least 3: 1 to validate, 1 to test"
        ):
            recipe("cifar10").replaced(data=str(tmp_path / "two.npz")).load_data()
    np.savez(tmp_path / "one.npz", x_train=cifar["x_train"][:1], x_test=cifar["x_test"])
    with pytest.raises(UserError, match=r"one.npz has 1 training image and none to validate"):
        recipe("cifar10").replaced(data=str(tmp_path / "one.npz")).load_data()
    np.savez(tmp_path / "nine.npz", x_train=cifar["x_train"][:9], x_test=cifar["x_test"])
    assert len(recipe("cifar10").replaced(data=str(tmp_path / "nine.npz")).load_data().valid) == 1
    np.savez(tmp_path / "frey.npz", x=np.zeros((400, 28, 20), np.uint8))
    with pytest.raises(UserError, match=r"frey.npz has 400 faces, expected Frey face's 1965"):
        recipe("freyface").replaced(data=str(tmp_path / "frey.npz")).load_data()


def test_partitions_that_leave_a_split_empty(pictures: Path) -> None:
    names, path = sorted(p.name for p in pictures.iterdir()), pictures / "list_eval_partition.txt"
    path.write_text("".join(f"{name} {i % 2}\n" for i, name in enumerate(names)))
    with pytest.raises(UserError, match=r"list_eval_partition.txt puts no picture into test, expected some of 0"):
        read(pictures)
    path.write_text("")
    with pytest.raises(UserError, match=r"puts no picture into train and none into valid and none into test"):
        read(pictures)
    path.write_text("".join(f"{name} {i % 3}\n" for i, name in enumerate([*names, names[0]])))
    with pytest.raises(UserError, match=r"line 25: got '000001.jpg 0', the name appears twice"):
        read(pictures)
    path.unlink()
    attributes = pictures / "list_attr_celeba.txt"
    for content, sentence in (
        (b"", "no line of attributes"),
        (b"\xff\xfe\0\0", "row of|expected"),
        (b"9" * 5000, "row of"),
    ):
        attributes.write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            read(pictures)


@pytest.fixture
def prepared(pictures: Path, tmp_path: Path) -> Path:
    return prepare.prepare(pictures, read(pictures), tmp_path / "store", 8, decoder="pillow", say=lambda _: None).folder


LIES = {
    "overlap": ({"splits": {"train": [0, 20], "valid": [10, 24]}}, "got split 'valid' from 10 on, expected none over"),
    "negative": ({"splits": {"train": [-5, 20]}}, r"got split 'train' \[-5, 20\], expected \[first, end\] with 0 <="),
    "beyond": ({"splits": {"train": [0, 25]}}, "got split 'train'"),
    "empty": ({"splits": {"train": [5, 5]}}, "got split 'train'"),
    "backwards": ({"splits": {"train": [9, 5]}}, "got split 'train'"),
    "fractions": ({"splits": {"train": [0.5, 5]}}, "got split 'train'"),
    "a split of words": ({"splits": {"train": "ab"}}, "got split 'train'"),
    "three bounds": ({"splits": {"train": [0, 1, 2]}}, "got split 'train'"),
    "another name": ({"splits": {"training": [0, 5]}}, r"got splits \['training'\]"),
    "no splits": ({"splits": {}}, "got splits"),
    "a list of splits": ({"splits": [["train", 0, 24]]}, "got splits"),
    "count of words": ({"count": "24"}, "got count 24, expected a number of images"),
    "count of truth": ({"count": True}, "got count True"),
    "negative count": ({"count": -24}, "got count -24"),
    "no count": ({"count": None}, "got count None"),
    "shape of two": ({"shape": [64, 3]}, r"got shape \[64, 3\]"),
    "negative shape": ({"shape": [3, -8, -8]}, "got shape"),
    "flat shape": ({"shape": [3, 0, 8]}, "got shape"),
    "another size": ({"shape": [3, 16, 16]}, r"images.u8 has 4608 bytes, expected 18432"),
    "kind": ({"kind": 5}, "got kind 5"),
    "attributes": ({"attributes": 5}, "got attributes 5"),
    "names of attributes": ({"attributes": [5]}, "got attributes"),
    "published": ({"published": "yes"}, "got published yes"),
    "source": ({"source": []}, "got source"),
    "skipped": ({"skipped": {}}, "got skipped"),
    "another key": ({"colour": 1}, r"got its keys \['colour'\]"),
}


@pytest.mark.parametrize("lie", LIES)
def test_manifests_that_lie(lie: str, prepared: Path) -> None:
    changes, sentence = LIES[lie]
    path = prepared / store.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=sentence):
        read(prepared)


def test_manifests_that_are_no_json(prepared: Path) -> None:
    path, whole = prepared / store.MANIFEST, (prepared / store.MANIFEST).read_text()
    for content in (
        b"[]", b"5", b"null", b"[" * 100_000, b"\xff\xfe", b"", bytes(50), b'{"version": 1}',
        whole.replace('"count": 24', '"count": NaN').encode(),
        whole.replace('"count": 24', '"count": ' + "9" * 5000).encode(),
        whole.replace('"count": 24', '"count": 1e400').encode(),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"manifest.json (is not the manifest|has version)"):
            read(prepared)


@pytest.mark.parametrize("labels", [np.zeros(24), np.zeros(5, int), np.array(3), np.zeros((24, 3), np.int8)])
def test_labels_that_do_not_fit(labels: np.ndarray, prepared: Path) -> None:
    np.save(prepared / store.LABELS, labels)
    with pytest.raises(UserError, match=r"labels.npy has"):
        read(prepared)
    (prepared / store.LABELS).write_bytes(b"\x93NUMPYx")
    with pytest.raises(UserError, match=r"labels.npy cannot be read as labels"):
        read(prepared)


RECORDS = [b"", bytes(90), b"[]", b"{}", b'{"identity": {}}', b'{"position": {"read": "x"}, "identity": 1}', b"\xff"]


@pytest.mark.parametrize("progress", [*RECORDS, b"[" * 99_999])
def test_a_damaged_record_of_progress_begins_anew(progress: bytes, pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / prepare.PROGRESS).write_bytes(progress)
    (folder / store.IMAGES).write_bytes(b"something")
    made = prepare.prepare(pictures, read(pictures), folder, 8, decoder="pillow", say=lambda _: None)
    assert made.manifest.count == 24


def test_images_lost_after_their_record_are_made_again(pictures: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "CHUNK", 4)
    how = {"decoder": "pillow", "say": lambda _: None}
    whole = prepare.prepare(pictures, read(pictures), tmp_path / "whole", 8, **how)
    with monkeypatch.context() as m:
        m.setattr(store, "write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare(pictures, read(pictures), tmp_path / "cut", 8, **how)
    with (tmp_path / "cut" / store.IMAGES).open("r+b") as file:
        file.truncate(1000)
    assert np.array_equal(prepare.prepare(pictures, read(pictures), tmp_path / "cut", 8, **how).images, whole.images)


def test_a_record_of_progress_that_lies_is_refused(pictures: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(prepare, "CHUNK", 4)
    how = {"decoder": "pillow", "say": lambda _: None}
    record = prepare.record_progress

    def stop(*arguments: object) -> None:
        record(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(prepare, "record_progress", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare.prepare(pictures, read(pictures), tmp_path / "store", 8, **how)
    path = tmp_path / "store" / prepare.PROGRESS
    saved = json.loads(path.read_text())
    saved["position"]["read"] = 24
    path.write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"progress.json does not fit the source; remove"):
        prepare.prepare(pictures, read(pictures), tmp_path / "store", 8, **how)


def test_a_store_is_not_written_through_a_link(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / store.IMAGES).symlink_to(tmp_path / "made.txt")
    with pytest.raises(UserError, match=r"images.u8 cannot be written .* it is a link, which is not followed"):
        prepare.prepare(pictures, read(pictures), tmp_path / "store", 8, decoder="pillow", say=lambda _: None)
    assert not (tmp_path / "made.txt").exists()


def test_a_split_with_no_readable_picture_is_refused(pictures: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in pictures.iterdir())
    rows = "".join(f"{name} {0 if i < 22 else i - 21}\n" for i, name in enumerate(names))
    (pictures / "list_eval_partition.txt").write_text(rows)
    (pictures / names[-1]).write_bytes(b"no picture")
    how = {"decoder": "pillow", "say": lambda _: None, "skip_limit": 0.5}
    with pytest.raises(UserError, match="has no picture of 'test' that can be read"):
        prepare.prepare(pictures, read(pictures), tmp_path / "store", 8, **how)


ODD = os.fsdecode(b"caf\xe9 \xff")
needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")


@pytest.mark.parametrize("path", ["memory", pytest.param("dali", marks=needs_dali)])
def test_names_that_are_not_utf8(path: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Folders, pictures, lists, skipped pictures, stores, manifests, caches and the stream."""
    folder = tmp_path / f"{ODD} faces"
    folder.mkdir()
    names = [f"{ODD}{i:02}.png" for i in range(24)]
    for i, name in enumerate(names):
        Image.new("RGB", (20, 20), (i, 0, 0)).save(folder / name)
    (folder / "list_eval_partition.txt").write_bytes(
        b"".join(os.fsencode(f"{name} {0 if i < 16 else 1 + i % 2}\n") for i, name in enumerate(names))
    )
    contents = read(folder)
    assert [len(split.images) for split in contents.splits.values()] == [16, 4, 4]
    config = recipe("celeba32").replaced(data=str(folder), cache=str(tmp_path / ODD), batch=8, input=path)
    dataset = config.load_data()
    batch = open_input(config.dataset, dataset, torch.tensor(1), config.optimisation.batch).batch(0)
    assert sorted((batch[:, 0, 0, 0] * 255).round().int().tolist())[0] < 16

    (folder / names[3]).write_bytes(b"no picture")
    how = {"decoder": None if path == "dali" else "pillow", "skip_limit": 0.1}
    made = prepare.prepare(folder, read(folder), tmp_path / f"{ODD} store", 8, **how)
    assert made.manifest.skipped[0]["name"] == names[3]
    assert r"skipped caf\xe9 \xff03.png" in capfd.readouterr().out
    assert read(tmp_path / f"{ODD} store").splits["train"].images.shape == (15, 3, 8, 8)
    config = config.replaced(size=16, flip=True)
    with pytest.raises(UserError, match=r"caf\\xe9 \\xff03.png cannot be read as a picture") as told:
        [
            open_input(config.dataset, config.load_data(), torch.tensor(1), config.optimisation.batch).batch(step)
            for step in range(3)
        ]
    str(told.value).encode()


def test_printable_names() -> None:
    assert printable(Path(ODD)) == r"caf\xe9 \xff"
    assert printable("a\nb\0c") == r"a\nb\x00c"
    assert printable("Größe") == "Größe"


def test_things_with_a_pictures_name(pictures: Path) -> None:
    (pictures / "folder.jpg").mkdir()
    assert len(read(pictures).splits["all"].images) == 24
    (pictures / "gone.jpg").symlink_to("nowhere.jpg")
    with pytest.raises(UserError, match=r"gone.jpg is no file but a broken link, a pipe or a device; remove it"):
        read(pictures)
    (pictures / "gone.jpg").unlink()
    os.mkfifo(pictures / "pipe.jpg")
    with pytest.raises(UserError, match=r"pipe.jpg is no file"):
        read(pictures)


def test_contents_know_where_they_come_from(pictures: Path) -> None:
    assert read(pictures).where == str(pictures)
    few = Contents("few", {"all": Split(np.zeros((2, 1, 4, 4), np.uint8))})
    with pytest.raises(UserError, match="the data set has 2 images"):
        few.divided()
