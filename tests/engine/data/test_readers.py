"""Every published format, round trip and damaged: an error names the file and what is wrong with it."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from eblvm.engine.data import published
from eblvm.engine.data.contents import Pictures
from eblvm.engine.data.readers import pickles, read
from eblvm.engine.errors import UserError

from .conftest import cifar_files, write_mnist, write_tar


def cut(path: Path, keep: float = 0.5) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])


@pytest.mark.parametrize("packed", [False, True])
def test_mnist_idx(packed: bool, mnist: dict, tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", mnist, packed)
    for path in (folder, next(folder.iterdir())):
        contents = read(path)
        assert contents.kind == "MNIST, idx files"
        assert contents.published is False
        for name in ("train", "test"):
            images, labels = contents.splits[name]
            assert np.array_equal(images[:, 0], mnist[f"x_{name}"])
            assert np.array_equal(labels, mnist[f"y_{name}"])
            assert labels.dtype == np.int64


def test_mnist_partial_truncated_and_wrong_magic(mnist: dict, tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", mnist, packed=False)
    images = folder / "train-images-idx3-ubyte"
    whole = images.read_bytes()
    cut(images)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte: got \d+ bytes of data, expected 40x28x28"):
        read(folder)
    images.write_bytes(b"\0\0\x0d\x03" + whole[4:])
    with pytest.raises(UserError, match="train-images-idx3-ubyte: got magic number 00000d03, expected 00000803"):
        read(folder)
    images.write_bytes(whole)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="t10k-labels-idx1-ubyte missing; MNIST is published at http"):
        read(folder)


def test_mnist_truncated_gz(mnist: dict, tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", mnist, packed=True)
    cut(folder / "t10k-images-idx3-ubyte.gz")
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte.gz cannot be unpacked"):
        read(folder)


@pytest.mark.realdata
def test_the_whole_mnist_is_known_by_its_checksums(real_data: Path, tmp_path: Path) -> None:
    with np.load(real_data / "mnist.npz") as archive:
        folder = write_mnist(tmp_path / "mnist", dict(archive), packed=False)
    assert read(folder).published is True
    path = folder / "t10k-images-idx3-ubyte"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"t10k-images-idx3-ubyte is damaged: its MD5 is .*copy it again"):
        read(folder)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_cifar10(binary: bool, packed: bool, cifar: dict, tmp_path: Path) -> None:
    files = cifar_files(cifar, binary)
    if packed:
        path = write_tar(tmp_path / "cifar.tar.gz", files)
    else:
        path = tmp_path / "cifar-10-batches-py"
        path.mkdir()
        for name, content in files.items():
            (path / name).write_bytes(content)
        path = tmp_path if not binary else path  # the folder that holds the batches' own, too
    contents = read(path)
    assert contents.kind == f"CIFAR-10, {'binary' if binary else 'python'} batches"
    assert contents.published is (None if binary and not packed else False)
    for name in ("train", "test"):
        images, labels = contents.splits[name]
        assert np.array_equal(images.transpose(0, 2, 3, 1), cifar[f"x_{name}"])
        assert np.array_equal(labels, cifar[f"y_{name}"])


@pytest.mark.parametrize("binary", [False, True])
def test_cifar10_damaged(binary: bool, cifar: dict, tmp_path: Path) -> None:
    files, suffix = cifar_files(cifar, binary), ".bin" if binary else ""
    name = f"data_batch_3{suffix}"
    short = write_tar(tmp_path / "short.tar.gz", files | {name: files[name][:-100]})
    with pytest.raises(UserError, match=rf"short.tar.gz: {name}.*(truncated|expected a multiple of 3073)"):
        read(short)
    partial = write_tar(tmp_path / "partial.tar.gz", {k: v for k, v in files.items() if k != name})
    with pytest.raises(UserError, match=rf"{name} missing; CIFAR-10 is published at https://www.cs.toronto"):
        read(partial)
    cut(partial)
    with pytest.raises(UserError, match=r"partial.tar.gz cannot be unpacked"):
        read(partial)
    other = write_tar(tmp_path / "other.tar.gz", {"readme.html": b"hello"})
    with pytest.raises(UserError, match="has no data_batch_1"):
        read(other)


class Malicious:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_does_nothing(protocol: int, cifar: dict, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bad = pickle.dumps({"data": Malicious(trace), "labels": []}, protocol=protocol)
    path = write_tar(tmp_path / "cifar.tar.gz", cifar_files(cifar, binary=False) | {"data_batch_2": bad})
    with pytest.raises(
        UserError, match="data_batch_2 is refused: as a pickle it may contain arrays and containers only"
    ):
        read(path)
    assert not trace.exists()
    pickle.loads(bad)  # the proof that it would have
    assert trace.exists()


@pytest.mark.parametrize(
    "code", [b"cos\nsystem\n(S'true'\ntR.", b"c_codecs\nencode\n(Vx\nVrot13\ntR.", b"cbuiltins\neval\n."]
)
def test_no_name_beyond_arrays_is_looked_up(code: bytes) -> None:
    with pytest.raises(UserError, match=r"batch is refused: .* use the published file"):
        pickles.loads(code, "batch")


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_unpickled_at_every_protocol(protocol: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    found = pickles.loads(pickle.dumps({"data": array, "name": b"\xff"}, protocol=protocol), "batch")
    assert np.array_equal(found["data"], array)
    assert found["name"] == b"\xff"


def test_frey_face_mat(frey: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "frey_rawface.mat"
    savemat(path, {"ff": frey.reshape(1965, 560).T})
    for given in (path, tmp_path):
        contents = read(given)
        assert contents.kind == "Frey face, MATLAB file"
        assert np.array_equal(contents.splits["all"].images[:, 0], frey)
    cut(path)
    with pytest.raises(UserError, match=r"frey_rawface.mat cannot be read as a MATLAB file"):
        read(path)
    savemat(path, {"ff": frey[:, :10].reshape(1965, 200).T})
    with pytest.raises(UserError, match="expected 560x1965 uint8"):
        read(path)
    savemat(path, {"faces": np.zeros(3)})
    with pytest.raises(UserError, match="got keys faces, expected 'ff'"):
        read(path)


def test_svhn_mat(cifar: dict, tmp_path: Path) -> None:
    for split in ("train", "test"):
        digits = cifar[f"y_{split}"].astype(np.uint8).copy()
        digits[digits == 0] = 10
        savemat(
            tmp_path / f"{split}_32x32.mat",
            {"X": cifar[f"x_{split}"].transpose(1, 2, 3, 0), "y": digits[:, None]},
            do_compression=True,
        )
    for given in (tmp_path, tmp_path / "test_32x32.mat"):
        contents = read(given)
        for name in ("train", "test"):
            assert np.array_equal(contents.splits[name].images.transpose(0, 2, 3, 1), cifar[f"x_{name}"])
            assert np.array_equal(contents.splits[name].labels, cifar[f"y_{name}"])
    cut(tmp_path / "test_32x32.mat", 0.8)
    with pytest.raises(UserError, match=r"test_32x32.mat cannot be read as a MATLAB file"):
        read(tmp_path)
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(UserError, match=r"test_32x32.mat missing; SVHN is published at http"):
        read(tmp_path)


def test_npz_and_npy(cifar: dict, tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **cifar)
    contents = read(tmp_path / "set.npz")
    assert list(contents.splits) == ["train", "test"]
    assert np.array_equal(contents.splits["test"].images[3].transpose(1, 2, 0), cifar["x_test"][3])
    np.save(tmp_path / "set.npy", cifar["x_train"])
    assert np.array_equal(read(tmp_path / "set.npy").splits["all"].images[7].transpose(1, 2, 0), cifar["x_train"][7])
    np.savez(tmp_path / "wrong.npz", x=np.zeros((3, 4, 4)))
    with pytest.raises(UserError, match=r"wrong.npz: got x 3x4x4 float64, expected nxHxW or nxHxWx3 uint8"):
        read(tmp_path / "wrong.npz")
    np.savez(tmp_path / "short.npz", x=cifar["x_train"], y=np.arange(3))
    with pytest.raises(UserError, match="got labels 3 int64 of 50 images"):
        read(tmp_path / "short.npz")
    np.savez(tmp_path / "other.npz", faces=np.zeros(3))
    with pytest.raises(UserError, match="got keys faces, expected 'x'"):
        read(tmp_path / "other.npz")
    np.save(tmp_path / "objects.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"objects.npy cannot be read as .npy"):
        read(tmp_path / "objects.npy")
    cut(tmp_path / "set.npz")
    with pytest.raises(UserError, match=r"set.npz cannot be read as .npz .* it may be truncated"):
        read(tmp_path / "set.npz")


def test_celeba_with_its_lists(pictures: Path) -> None:
    names = sorted(path.name for path in pictures.iterdir())
    places = [0] * 18 + [1] * 4 + [2] * 2
    partition = pictures.parent / "list_eval_partition.txt"
    partition.write_text("".join(f"{name} {place}\n" for name, place in zip(names, places, strict=True)))
    attributes = pictures.parent / "list_attr_celeba.txt"
    rows = "".join(f"{name} {-1 if i % 2 else 1:2d} {1:2d}\n" for i, name in enumerate(names))
    attributes.write_text(f"24\nBald Smiling\n{rows}")
    for given in (pictures, pictures.parent):
        contents = read(given)
        assert contents.kind == "CelebA, aligned faces"
        assert {name: len(split.images) for name, split in contents.splits.items()} == {
            "train": 18, "valid": 4, "test": 2,
        }  # fmt: skip
        valid = contents.splits["valid"]
        assert isinstance(valid.images, Pictures)
        assert [path.name for path in valid.images.files] == names[18:22]
        assert valid.labels.tolist() == [[1, 1], [-1, 1], [1, 1], [-1, 1]]
        assert contents.attributes == ("Bald", "Smiling")
        assert contents.crop_fraction == 140 / 178
    (pictures / names[5]).unlink()
    with pytest.raises(UserError, match=rf"{names[5]} missing; CelebA is published at https://mmlab"):
        read(pictures)
    partition.write_text("000001.jpg 7\n")
    with pytest.raises(UserError, match=r"list_eval_partition.txt, line 1: got '000001.jpg 7'"):
        read(pictures)
    attributes.write_text(f"25\nBald Smiling\n{rows}")
    with pytest.raises(UserError, match=r"list_attr_celeba.txt: got 24 rows, expected the 25"):
        read(pictures)


def test_plain_folders(tmp_path: Path) -> None:
    for name in ("b/2.png", "a/1.png", "a/3.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (30, 20)).save(tmp_path / name)
    contents = read(tmp_path)
    assert (contents.kind, contents.crop_fraction) == ("folder of pictures", None)
    assert [path.name for path in contents.splits["all"].images.files] == ["1.png", "3.jpg", "2.png"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"hello, world", "begins with 68656c6c, which is none of"),
        (b"\x1f\x8bno", "cannot be unpack"),
    ],
)
def test_unknown_files(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "file.dat").write_bytes(content)
    with pytest.raises(UserError, match=rf"file.dat .*{sentence}"):
        read(tmp_path / "file.dat")


def test_every_digest_has_its_count() -> None:
    assert set(published.MD5) == set(published.COUNTS)
