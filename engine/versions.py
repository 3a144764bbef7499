"""What figures depend on."""

import platform
from importlib.metadata import version

import torch

from eblvm.kernels import backends


def versions() -> dict[str, str]:
    """What figures depend on: the package, Python, torch, and the backend that serves each kernel op on the CPU."""
    serving = ", ".join(f"{b.op}={b.name}" for b in backends() if b.serves and b.device == "cpu")
    return {
        "eblvm": version("eblvm"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": serving,
    }
