"""The native library: loaded once, and the reason kept when it is not."""

import importlib.util
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import torch


class Backend(NamedTuple):
    """One candidate: does backend `name` serve `op` on `device`, and why (or why not)."""

    op: str
    device: str
    name: str
    serves: bool
    reason: str


def _load_native() -> tuple[Path | None, str]:
    if os.environ.get("EBLVM_NATIVE", "1") == "0":
        return None, "switched off by EBLVM_NATIVE=0"
    spec = importlib.util.find_spec("eblvm.kernels._native")
    if spec is None or spec.origin is None:
        return None, "not built: no C++ compiler was found at install time; install one, then `pip install` again"
    try:
        torch.ops.load_library(spec.origin)
    except OSError as error:
        reason = f"{spec.origin} does not load ({error}); `pip install` again to rebuild it for torch {torch.__version__}"
        warnings.warn(f"eblvm native kernels: {reason}. The slower reference serves.", RuntimeWarning, stacklevel=2)
        return None, reason
    return Path(spec.origin), f"loaded from {spec.origin}"


NATIVE_LIBRARY, NATIVE_REASON = _load_native()


def native_status(op: str) -> tuple[bool, str]:
    """Is `torch.ops.eblvm.<op>` there, and why (or why not)."""
    if NATIVE_LIBRARY is None:
        return False, NATIVE_REASON
    if not hasattr(torch.ops.eblvm, op):
        return False, f"{NATIVE_LIBRARY} was built before op {op!r} existed; `pip install` again to rebuild it"
    return True, NATIVE_REASON
