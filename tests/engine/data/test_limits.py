"""What a file claims is held against its length and the limits before memory is taken for it."""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from eblvm.engine.data import limits
from eblvm.engine.data.readers import read
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.image_sets import read_images

from .conftest import cifar_files, write_mnist

MIB = 2**20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A limit of 16 MiB, and proof that neither a reader nor its test took much more."""
    monkeypatch.setenv("EBLVM_MAX_BYTES", str(16 * MIB))
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * MIB


def refused(path: Path, sentence: str = r"the limit is 16,777,216; if you trust .* EBLVM_MAX_BYTES=\d+") -> None:
    with pytest.raises(UserError, match=sentence) as told:
        read(path)
    assert path.name in str(told.value)


def bomb(count: int) -> io.BytesIO:
    """`count` MiB of zeros, gzipped a MiB at a time."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=9) as file:
        for _ in range(count):
            file.write(bytes(MIB))
    return buffer


def test_gz_bomb(mnist: dict, tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", mnist, packed=True)
    path = folder / "train-images-idx3-ubyte.gz"
    header = gzip.compress(struct.pack(">4I", 0x803, 2**20, 16, 16))
    path.write_bytes(header + bomb(300).getvalue())
    refused(path, "needs 268,435,456 bytes of memory, the limit is 16,777,216")
    path.write_bytes(gzip.compress(struct.pack(">4I", 0x803, 10, 28, 28)) + bomb(100).getvalue())
    refused(path, r"got more bytes of data, expected 10x28x28")


def test_idx_that_claims_more_than_it_has(mnist: dict, tmp_path: Path) -> None:
    folder = write_mnist(tmp_path / "mnist", mnist, packed=False)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1) + b"abc")
    refused(path)
    path.write_bytes(struct.pack(">4I", 0x803, 100, 28, 28) + b"abc")
    refused(path, "got 3 bytes of data, expected 100x28x28")


def test_tar_bombs(cifar: dict, tmp_path: Path) -> None:
    """A member that is a bomb, members before the batches, a header that is one, and a hole."""
    path, files = tmp_path / "cifar.tar.gz", cifar_files(cifar, binary=False)
    for name in ("data_batch_1", "readme"):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            member = tarfile.TarInfo(name)
            member.size = 100 * MIB
            archive.addfile(member, Zeros(member.size))
            for other, content in files.items():
                member = tarfile.TarInfo(f"cifar/{other}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        path.write_bytes(buffer.getvalue())
        refused(path)
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 100 * MIB
    path.write_bytes(gzip.compress(header.tobuf()) + bomb(100).getvalue())
    refused(path)
    sparse = tarfile.TarInfo("data_batch_1")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 0
    block = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (2**35, 0)
    block[483:495] = b"%011o\0" % 2**35
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    path.write_bytes(gzip.compress(bytes(block) + bytes(2048)))
    with pytest.raises(UserError, match=r"cifar.tar.gz"):
        read(path)


class Zeros(io.RawIOBase):
    def __init__(self, left: int):
        self.left = left

    def read(self, count: int = -1, /) -> bytes:
        count = min(self.left, count)
        self.left -= count
        return bytes(count)


def npy_header(shape: str) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def test_npz_bomb_and_claims(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        file.write(npy_header(f"(1, {10 * 2**10}, {10 * 2**10})"))
        for _ in range(100):
            file.write(bytes(MIB))
    refused(path)
    for shape in ("(1099511627776, 2, 2)", "(-1, -3, 1)", "(9, 9, 9)"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", npy_header(shape) + b"abc")
        refused(path, r"set.npz: x has 3 bytes of data, its header says")
        (tmp_path / "set.npy").write_bytes(npy_header(shape) + b"abc")
        refused(tmp_path / "set.npy", r"set.npy has 3 bytes of data, its header says")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("junk.npy", "w") as file:
            for _ in range(100):
                file.write(bytes(MIB))
        archive.writestr("x.npy", npy_header("(1, 1, 3)") + b"abc")
    assert read(path).splits["all"].images.shape == (1, 1, 1, 3)  # what is not wanted is not unpacked


def test_mat_bomb(tmp_path: Path) -> None:
    path = tmp_path / "frey_rawface.mat"
    tracemalloc.stop()
    savemat(path, {"ff": np.zeros((560, 300_000), np.uint8)}, do_compression=True)
    tracemalloc.start()
    assert path.stat().st_size < 2**20
    refused(path)


def test_evaluation_is_bounded_too(tmp_path: Path) -> None:
    tracemalloc.stop()
    with zipfile.ZipFile(tmp_path / "set.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(100 * MIB))
    torch.save(torch.zeros(1, 1, 1, 1).expand(2**20, 3, 64, 64), tmp_path / "set.pt")
    tracemalloc.start()
    for name in ("set.npz", "set.pt"):
        with pytest.raises(UserError, match=rf"{name} needs [\d,]+ bytes of memory, the limit is 16,777,216"):
            read_images(tmp_path / name, (3, 64, 64))


@pytest.mark.parametrize("value", ["-1", "0", "many", "1e9", "٣", "9" * 30])
def test_a_limit_that_is_none_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EBLVM_MAX_PIXELS", value)
    with pytest.raises(UserError, match=r"got EBLVM_MAX_PIXELS=.* expected a whole number above 0"):
        limits.too_many_pixels(1, 1)


def test_limits_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "set.npz", x=np.zeros((300, 256, 256), np.uint8))
    refused(tmp_path / "set.npz")
    monkeypatch.setenv("EBLVM_MAX_BYTES", str(20 * MIB))
    assert len(read(tmp_path / "set.npz").splits["all"].images) == 300
