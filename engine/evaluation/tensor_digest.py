"""SHA-256 of tensors, by which a figure names its weights and its data."""

import hashlib
from collections.abc import Mapping

from torch import Tensor


def tensor_digest(tensors: Mapping[str, Tensor]) -> str:
    """The digest of names, types, shapes and bytes, whatever the order and the device."""
    digest = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        digest.update(f"{name} {t.dtype} {list(t.shape)}\n".encode())
        digest.update(t.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
