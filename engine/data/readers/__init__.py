"""`read(path)`: a data set as its owners publish it, recognised by content; errors name the file and what is wrong."""

from pathlib import Path

import numpy as np

from eblvm.engine.data.contents import Contents
from eblvm.engine.data.pictures import store
from eblvm.engine.data.readers import arrays, cifar, idx, matlab, picture_folder, shards
from eblvm.engine.errors import UserError, printable, reason


def read(path: Path) -> Contents:
    """The splits in `path`, none empty: a file, the folder of a set of several files, or shards as `{000..012}.tar`."""
    try:
        if "{" in path.name and not path.exists():
            contents = shards.read_shards(shards.expanded(path))
        else:
            contents = read_folder(path) if path.is_dir() else read_file(path)
    except OSError as error:  # a folder that may not be listed, a disk that fails
        raise UserError(f"{printable(Path(error.filename or path))} cannot be read ({reason(error)})") from None
    for name, split in contents.splits.items():
        if not len(split.images) or (isinstance(split.images, np.ndarray) and not split.images.size):
            raise UserError(f"{printable(path)} has no images in {name!r}; copy it again, or leave the split out")
    return contents._replace(where=str(path))


def read_file(path: Path) -> Contents:
    if not path.is_file():
        told = "give --data the path of the files as they are published"
        raise UserError(f"data file {printable(path)} does not exist; {told}")
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise UserError(f"{path} is empty; copy it again")
    if start[:2] == b"PK":
        return arrays.read_npz(path)
    if start[:6] == b"\x93NUMPY":
        return arrays.read_npy(path)
    if start.startswith((b"MATLAB 5.0", b"MATLAB 7.3")) or path.suffix == ".mat":
        return matlab.read_mat(path)
    if idx.is_idx(path):
        return idx.read_mnist(path.parent)
    if path.name.removesuffix(".bin") in cifar.NAMES:
        return cifar.read_folder(path.parent)
    if path.suffix == shards.SUFFIX and (contents := shards.read_shards([path])).total:
        return contents
    if start[:2] == b"\x1f\x8b" or cifar.is_tar(path):
        return cifar.read_tar(path)
    if path.suffix == ".npz":
        return arrays.read_npz(path)
    raise UserError(
        f"{path} begins with {start[:4].hex()}, which is none of .npz, .npy, .mat, idx or a CIFAR-10 archive; "
        "of pictures give the folder"
    )


def read_folder(path: Path) -> Contents:
    """A prepared store, MNIST, CIFAR-10 (or its folder in it), SVHN, pictures, or shards of them."""
    if (path / store.MANIFEST).is_file():
        return store.open_store(path).contents()
    if any(idx.find(path, name) for pair in idx.FILES.values() for name in pair):
        return idx.read_mnist(path)
    for place in (path, path / "cifar-10-batches-py", path / "cifar-10-batches-bin"):
        if cifar.is_folder(place):
            return cifar.read_folder(place)
    if any((path / name).is_file() for name in matlab.SVHN.values()):
        return matlab.read_svhn(path)
    if (path / "frey_rawface.mat").is_file():
        return matlab.read_mat(path / "frey_rawface.mat")
    if (tars := shards.in_folder(path)) and not picture_folder.pictures_of(path):
        return shards.read_shards(tars)
    return picture_folder.read_folder(path)
