"""The backends that can be used: the native library, loaded once, and Triton; or the reason why one cannot.

`Function` is an autograd Function that calls them without torch's binding of arguments.
"""

import importlib.util
import os
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Backend(NamedTuple):
    """One candidate: is backend `name` used for `op` on `device` (`serves`), and why (or why not)."""

    op: str
    device: str
    name: str
    serves: bool
    reason: str


NOT_BUILT = (
    "not built: they need GCC or Clang, on Linux or macOS, and the installation found none; "
    "install one, then `pip install` again"
)


def _built_for(library: Path) -> str | None:
    """The torch that the library was compiled against; None for one that does not say."""
    note = library.with_name("_native.torch")
    return note.read_text().strip() if note.is_file() else None


def _minor(version: str) -> tuple[str, ...]:
    """torch keeps its binary interface within a minor version."""
    return tuple(version.split("+")[0].split(".")[:2])


def _load_native() -> tuple[Path | None, str]:
    if os.environ.get("EBLVM_NATIVE", "1") == "0":
        return None, "switched off by EBLVM_NATIVE=0"
    given = os.environ.get("EBLVM_NATIVE", "1")  # or a library built otherwise: under a sanitizer, say
    spec = importlib.util.find_spec("eblvm.kernels._native")
    origin = given if given != "1" else spec and spec.origin
    if not origin:
        return None, NOT_BUILT
    built_for, here = _built_for(Path(origin)), torch.__version__
    if built_for is not None and _minor(built_for) != _minor(here):
        reason = (
            f"built for torch {built_for}, this is {here}; to build them for it: "
            "pip install --force-reinstall --no-deps --no-build-isolation eblvm"
        )
        warnings.warn(
            f"eblvm native kernels: {reason}. A slower PyTorch version is used.", RuntimeWarning, stacklevel=2
        )
        return None, reason
    try:
        torch.ops.load_library(origin)
    except OSError as error:
        reason = f"{origin} does not load ({error}); `pip install` again to rebuild it for torch {torch.__version__}"
        warnings.warn(
            f"eblvm native kernels: {reason}. A slower PyTorch version is used.", RuntimeWarning, stacklevel=2
        )
        return None, reason
    return Path(origin), f"loaded from {origin}"


NATIVE_LIBRARY, NATIVE_REASON = _load_native()


def notice() -> str | None:
    """A sentence for a run without native kernels that are not switched off by choice; None for other runs."""
    if NATIVE_LIBRARY is None and NATIVE_REASON == NOT_BUILT:
        return f"native kernels are {NATIVE_REASON}; until then a slower PyTorch version is used"
    return None


def native_status(op: str) -> tuple[bool, str]:
    """(is `torch.ops.eblvm.<op>` available, why or why not)."""
    if NATIVE_LIBRARY is None:
        return False, NATIVE_REASON
    if not hasattr(torch.ops.eblvm, op):
        return False, f"{NATIVE_LIBRARY} was built before op {op!r} existed; `pip install` again to rebuild it"
    return True, NATIVE_REASON


def triton_status() -> tuple[bool, str]:
    """(are the Triton kernels used for CUDA tensors here, why or why not)."""
    if os.environ.get("EBLVM_TRITON", "1") == "0":
        return False, "switched off by EBLVM_TRITON=0"
    if importlib.util.find_spec("triton") is None:
        return False, "triton is not installed; pip install 'eblvm[gpu]'"
    if not torch.cuda.is_available():
        return False, "torch sees no CUDA device here"
    if torch.cuda.get_device_capability() < (7, 5):
        return False, "needs a GPU of compute capability 7.5 or newer"
    return True, "triton is installed"


def op_backends(op: str, native: str | None = None) -> list[Backend]:
    """The rows of an op with the three backends; `native` names its op in the native library."""
    native_serves, native_reason = native_status(native or op)
    triton_serves, triton_reason = TRITON, TRITON_REASON
    return [
        Backend(op, "cpu", "native", native_serves, native_reason),
        Backend(op, "cpu", "reference", not native_serves, "native is used" if native_serves else "always available"),
        Backend(op, "cuda", "triton", triton_serves, triton_reason),
        Backend(op, "cuda", "reference", not triton_serves, "triton is used" if triton_serves else "always available"),
    ]


def backend_for(op: str, x: Tensor, reference: Any, native: Any) -> Any:
    """The backend of `op` for x: `native` (None if it is missing), the op's triton module, or `reference`."""
    if torch.compiler.is_compiling():
        return reference
    if native is not None and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        return native
    if TRITON and x.device.type == "cuda":
        return triton_module(op, x.device)
    return reference


def triton_module(op: str, device: torch.device, name: str = "triton") -> Any:
    """`kernels/<op>/<name>.py` for tensors on `device`: Triton launches on the current device, wherever they are; its
    interpreter takes those of the host."""
    module = import_module(f"eblvm.kernels.{op}.{name}")
    current = device.type != "cuda" or device.index == torch.cuda.current_device()
    return module if current else _On(device, module)


class _On:
    """A module whose functions make `device` the current one while they run."""

    def __init__(self, device: torch.device, module: ModuleType):
        self._device, self._module = device, module

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._module, name)

        def on_device(*arguments: Any, **options: Any) -> Any:
            with torch.cuda.device(self._device):
                return member(*arguments, **options)

        return on_device if callable(member) else member


TRITON, TRITON_REASON = triton_status()


class Function(torch.autograd.Function):
    """A `torch.autograd.Function` with `setup_context`, called with all arguments of `forward` in their order.

    torch binds them to forward's signature in every call, for defaults that are not given. That costs more than a
    small operator, so it is skipped; without gradient tracking only `forward` is called. Inside torch.func nothing
    changes.
    """

    @classmethod
    def apply(cls, *arguments: Any) -> Any:
        if torch._C._are_functorch_transforms_active():
            return super().apply(*arguments)
        if not torch.is_grad_enabled():
            return cls.forward(*arguments)
        return super(torch.autograd.Function, cls).apply(*arguments)  # type: ignore[misc]
