"""Versions that figures depend on."""

import platform
from importlib.metadata import version

import torch

from eblvm.kernels import backends


def versions(device: str = "cpu") -> dict[str, str]:
    """Return the versions of the package, Python and torch, and the backend of each kernel op on the device."""
    place = torch.device(device).type
    kernels = ", ".join(f"{b.op}={b.name}" for b in backends() if b.serves and b.device == place)
    return {
        "eblvm": version("eblvm"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": kernels,
    }
