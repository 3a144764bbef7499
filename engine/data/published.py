"""Addresses of the published data sets, and the MD5 digests that tell their files from others."""

import hashlib

from eblvm.engine.errors import UserError, printable

WHERE = {
    "Frey face": "https://cs.nyu.edu/~roweis/data/frey_rawface.mat",
    "MNIST": "http://yann.lecun.com/exdb/mnist/ (mirror: https://ossci-datasets.s3.amazonaws.com/mnist/)",
    "CIFAR-10": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "SVHN": "http://ufldl.stanford.edu/housenumbers/",
    "CelebA": "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
}
MD5 = {  # of the unpacked files
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    "list_eval_partition.txt": "d32c9cbf5e040fd4025c592c306e6668",
    "list_attr_celeba.txt": "75e246fa4810816ffd6ee81facbd244c",
}
COUNTS = {  # samples in the published files
    "train-images-idx3-ubyte": 60_000,
    "train-labels-idx1-ubyte": 60_000,
    "t10k-images-idx3-ubyte": 10_000,
    "t10k-labels-idx1-ubyte": 10_000,
    **{name: 10_000 for name in MD5 if "batch" in name},
    "cifar-10-binary.tar.gz": 60_000,
    "train_32x32.mat": 73_257,
    "test_32x32.mat": 26_032,
    "list_eval_partition.txt": 202_599,
    "list_attr_celeba.txt": 202_599,
}


def verify(where: str, name: str, content: bytes, count: int) -> bool | None:
    """True if `content` of `count` samples is the published file `name`; None where no digest is known.

    A file that is as long as the published one and differs is damaged. A shorter or longer one is another data set.
    """
    if name not in MD5:
        return None
    if count != COUNTS[name]:
        return False
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != MD5[name]:
        told = f"its MD5 is {digest}, that of the published {name} is {MD5[name]}"
        raise UserError(f"{where} is damaged: {told}; copy it again")
    return True


def missing(where: str, names: list[str], dataset: str) -> UserError:
    """The error for a partial set: which files are missing, and where they are published."""
    shown = ", ".join(printable(name) for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return UserError(f"{printable(where)} is not complete: {shown} missing; {dataset} is published at {WHERE[dataset]}")


def agreed(verified: list[bool | None]) -> bool | None:
    """All files verified: True; one that is not the published: False; nothing known: None."""
    if any(one is False for one in verified):
        return False
    return True if verified and all(verified) else None
