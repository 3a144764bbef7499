"""Two GPUs that compute nothing: `install()` makes torch accept fake tensors on device cuda, in a build without CUDA.

Autograd needs a device's guard and hooks; `guard.cpp` has both. The other functions of `torch.cuda` that the engine
calls are replaced here. Call `install()` before torch is imported.
"""

import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GPU_BYTES = 80 * 2**30


def install() -> None:
    assert "torch" not in sys.modules, "the guard is registered before torch is imported"
    origin = importlib.util.find_spec("torch")
    assert origin is not None
    assert origin.origin is not None
    guard = loaded_guard(Path(origin.origin).parent)
    import torch

    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.is_initialized = lambda: True
    cuda._lazy_init = lambda: None
    cuda.device_count = lambda: 2
    cuda.current_device = lambda: int(guard.eblvm_current_device())
    cuda.set_device = lambda device: guard.eblvm_set_device(index_of(device))
    cuda._exchange_device = cuda._maybe_exchange_device = lambda device: exchanged(guard, device)
    cuda.get_device_capability = lambda *_: (9, 0)
    cuda.get_device_name = lambda *_: "a fake GPU"
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.mem_get_info = lambda *_: (GPU_BYTES, GPU_BYTES)
    cuda.reset_peak_memory_stats = lambda *_: None
    cuda.max_memory_allocated = lambda *_: 0
    cuda.get_device_properties = lambda *_: SimpleNamespace(
        name="a fake GPU", major=9, minor=0, total_memory=GPU_BYTES, multi_processor_count=132
    )
    from tests.rehearsal import capture_model

    gpu = capture_model.Gpu()
    for module, names in ((cuda, capture_model.replacements(gpu)), (torch._C, capture_model.allocator(gpu))):
        for name, replacement in names.items():
            setattr(module, name, replacement)

    plain = torch.tensor

    def tensor(data: Any, **options: Any) -> Any:
        """Make a tensor as torch does: on the host, then copied."""
        device = options.pop("device", None) or default_device()
        made = plain(data, **options)
        return made if device is None or torch.device(device).type == "cpu" else made.to(device)

    torch.tensor = tensor  # type: ignore[assignment]


def exchanged(guard: ctypes.CDLL, device: int) -> int:
    before = int(guard.eblvm_current_device())
    if device >= 0:
        guard.eblvm_set_device(device)
    return before


def loaded_guard(torch_folder: Path) -> ctypes.CDLL:
    folder = tempfile.mkdtemp()
    library = Path(folder) / "guard.so"
    includes = [f"-I{torch_folder / 'include'}", f"-I{torch_folder / 'include/torch/csrc/api/include'}"]
    source = str(Path(__file__).with_name("guard.cpp"))
    links = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run(
        ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", *includes, source, "-o", str(library), *links], check=True
    )
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def default_device() -> Any:
    """Return the device of `with torch.device(...)`, which applies only to torch's own `tensor`."""
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    modes = [mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return modes[-1].device if modes else None


def index_of(device: Any) -> int:
    import torch

    return device if isinstance(device, int) else torch.device(device).index or 0
