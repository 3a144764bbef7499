"""Small files of every format: of the real data sets where these are there, of synthetic images elsewhere."""

import gzip
import io
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DATA = Path(os.environ.get("EBLVM_DATA", Path(__file__).parents[4] / "shared" / "data"))


def some(name: str, key: str, count: int, shape: tuple[int, ...]) -> np.ndarray:
    if (DATA / name).is_file():
        with np.load(DATA / name) as archive:
            return archive[key][:count]
    high = 10 if key.startswith("y") else 256
    return np.random.default_rng(len(key)).integers(0, high, (count, *shape)).astype(np.uint8)


@pytest.fixture(scope="session")
def mnist() -> dict[str, np.ndarray]:
    sizes = {"train": 40, "test": 10}
    x = {f"x_{split}": some("mnist.npz", f"x_{split}", n, (28, 28)) for split, n in sizes.items()}
    return x | {f"y_{split}": some("mnist.npz", f"y_{split}", n, ()) for split, n in sizes.items()}


@pytest.fixture(scope="session")
def cifar() -> dict[str, np.ndarray]:
    sizes = {"train": 50, "test": 10}
    x = {f"x_{split}": some("cifar10_10k_2k.npz", f"x_{split}", n, (32, 32, 3)) for split, n in sizes.items()}
    return x | {f"y_{split}": some("cifar10_10k_2k.npz", f"y_{split}", n, ()).reshape(-1) for split, n in sizes.items()}


@pytest.fixture(scope="session")
def frey() -> np.ndarray:
    return some("frey.npz", "x", 1965, (28, 20))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of 24 JPEGs: CelebA's own, or synthetic ones of its size."""
    folder = tmp_path / "img_align_celeba"
    folder.mkdir()
    real = sorted((DATA / "celeba").glob("*.jpg"))[:24]
    for i in range(24):
        path = folder / f"{i + 1:06}.jpg"
        if real:
            path.write_bytes(real[i].read_bytes())
        else:
            Image.fromarray(smooth(i, 109, 89)).save(path, quality=90)
    return folder


def smooth(seed: int, height: int, width: int) -> np.ndarray:
    """A picture of slow waves, so that JPEG keeps it nearly."""
    y, x = np.mgrid[:height, :width] / 20
    waves = [np.sin(x * (1 + seed % 3) + seed) + np.cos(y * (1 + c) - seed) for c in range(3)]
    return ((np.stack(waves, -1) + 2) * 63).astype(np.uint8)


def write_mnist(folder: Path, arrays: dict[str, np.ndarray], packed: bool) -> Path:
    folder.mkdir(exist_ok=True)
    for split, name in (("train", "train"), ("test", "t10k")):
        for key, stem, code in (("x", "images-idx3", 3), ("y", "labels-idx1", 1)):
            array = arrays[f"{key}_{split}"].astype(np.uint8)
            content = struct.pack(f">I{array.ndim}I", 0x800 + code, *array.shape) + array.tobytes()
            path = folder / f"{name}-{stem}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(content, 1) if packed else content)
    return folder


def cifar_files(arrays: dict[str, np.ndarray], binary: bool) -> dict[str, bytes]:
    """The six batches, the training images shared out over five of them."""
    parts = {f"data_batch_{i + 1}": ("train", slice(i * 10, i * 10 + 10)) for i in range(5)}
    parts["test_batch"] = ("test", slice(None))
    files = {}
    for name, (split, rows) in parts.items():
        data = arrays[f"x_{split}"][rows].transpose(0, 3, 1, 2).reshape(-1, 3072)
        labels = arrays[f"y_{split}"][rows].astype(np.uint8)
        if binary:
            files[f"{name}.bin"] = np.concatenate([labels[:, None], data], 1).tobytes()
        else:
            batch = {b"data": data, b"labels": labels.tolist(), b"batch_label": b"one", b"filenames": [b"a.png"]}
            files[name] = pickle.dumps({k.decode(): v for k, v in batch.items()}, protocol=2)
    return files


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path
