"""A watch on GPU code: its launches, and everything that would make the host wait or the kernel fail."""

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

ROOT = Path(__file__).resolve().parents[2]
# Operators that only view memory, or reserve it.
WITHOUT_LAUNCH = frozenset(
    "view _unsafe_view detach alias t transpose expand unsqueeze squeeze select slice permute as_strided empty "
    "empty_strided empty_like split split_with_sizes unbind lift_fresh new_empty reshape unfold diagonal view_as "
    "_reshape_alias resize_ is_pinned _local_scalar_dense new_empty_strided chunk movedim broadcast_tensors narrow "
    "is_same_size set_ _assert_tensor_metadata flatten device _has_compatible_shallow_copy_type".split()
)
WAITING = frozenset(("nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal"))
GRID_LIMITS = (2**31 - 1, 65_535, 65_535)


class Watch(TorchDispatchMode):
    """A counter of a `with` block; `problems` are faults, `waits` and `copies` are faults inside a training step."""

    current: "Watch | None" = None

    def __init__(self, sites: bool = False) -> None:
        super().__init__()
        self._names_sites = sites
        self.launches: Counter[str] = Counter()
        self.sites: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.problems: Counter[str] = Counter()

    def __enter__(self) -> "Watch":
        self._outer, Watch.current = Watch.current, self
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        Watch.current = self._outer
        super().__exit__(*error)

    def builds(self, name: str, variant: object) -> None:
        """Note that a launch needs a variant of a kernel, which is compiled, or chosen by timing, when it is first."""

    def launch(self, name: str) -> None:
        self.launches[name] += 1
        if self._names_sites:
            self.sites[f"{name} {site(1)}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        space, name = func._schema.name.split("::")
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        before = {t.device.type for t in tensors}
        if name == "_local_scalar_dense":
            if "cuda" in before:
                self.waits[f"a number is read at {site()}"] += 1
            return scalar_like(tensors[0])
        if space == "eblvm" and "cuda" in before:
            self.problems[f"native CPU op {name} on a cuda tensor at {site()}"] += 1
        for t in tensors:
            if isinstance(t, FakeTensor):
                t.constant = None
        out = func(*args, **kwargs)
        after = {t.device.type for t in tree_leaves(out) if isinstance(t, Tensor)}
        if name in ("_to_copy", "copy_"):
            source, target = (args[1], args[0]) if name == "copy_" else (args[0], out)
            if isinstance(source, Tensor) and source.device.type != target.device.type:
                asynchronous = bool(kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2]))
                pinned = source.device.type == "cpu" and source.is_pinned()
                kind = "" if asynchronous and pinned else "blocking "
                self.copies[f"{kind}copy {source.device.type} -> {target.device.type} at {site()}"] += 1
                return out
        # A scalar of the host is passed by value.
        elif "cuda" in before and any(t.dim() for t in tensors if t.device.type == "cpu"):
            self.problems[f"{name} mixes devices at {site()}"] += 1
        if name in WAITING and "cuda" in before:
            self.waits[f"{name} at {site()}"] += 1
        if name not in WITHOUT_LAUNCH and "cuda" in after | before:
            self.launch(name)
        return out


def scalar_like(t: Tensor) -> bool | float | int:
    return True if t.dtype == torch.bool else 1.0 if t.is_floating_point() else 1


def site(depth: int = 3) -> str:
    """Return the engine's own lines on the stack, innermost first."""
    own = []
    for frame in traceback.walk_stack(None):
        name = frame[0].f_code.co_filename
        if "/engine/" in name or "/kernels/" in name or "/bench/" in name:
            own.append(f"{name.rsplit('/', 2)[-2]}/{Path(name).name}:{frame[1]}")
            if len(own) == depth:
                break
    return " < ".join(own)


def flat(arguments: Any) -> list[Any]:
    return [x for a in arguments for x in (a if isinstance(a, tuple) else (a,))]


def specialised(kernel: Any, args: Any, options: Any) -> tuple[object, ...]:
    """Return what Triton's binder makes a kernel of: constants, types, and of whole numbers 1 and multiples of 16."""
    given = dict(zip((p.name for p in kernel.params), args, strict=False)) | options
    numbers = {p.name: p.do_not_specialize for p in kernel.params if not p.is_constexpr}
    return tuple((name, variant(x, numbers.get(name))) for name, x in sorted(given.items()))


def variant(x: object, general: bool | None) -> object:
    """`general`: is one variant of a kernel for every number? None: its value is a constant of the kernel."""
    if isinstance(x, Tensor):
        return x.dtype
    if isinstance(x, tuple):
        return tuple(variant(one, general) for one in x)
    if general is None or type(x) is not int:
        return type(x) if general is not None else repr(x)
    return int if general else (x == 1, x % 16 == 0)


def launched(kernel: Any, *args: Any, grid: Any = None, warmup: bool = False, **options: Any) -> None:
    """Replace Triton's launch: check the kernel's arguments, compile and run nothing."""
    watch, name = Watch.current, kernel.fn.__name__
    if watch is None:
        return
    watch.launch(f"triton {name}")
    watch.builds(f"triton {name}", specialised(kernel, args, options))
    for i, a in enumerate(flat([*args, *options.values()])):
        if not isinstance(a, Tensor):
            continue
        where = f"triton {name}: argument {i}"
        if a.device.type != "cuda":
            watch.problems[f"{where} is on {a.device} at {site()}"] += 1
        elif a.device.index != torch.cuda.current_device():
            current = torch.cuda.current_device()
            watch.problems[f"{where} is on {a.device}, launched on cuda:{current} at {site()}"] += 1
        if torch._C._functorch.is_functorch_wrapped_tensor(a):
            watch.problems[f"{where} is wrapped by functorch at {site()}"] += 1
        elif not (a.is_contiguous() or torch.empty_like(a).stride() == a.stride()):
            watch.problems[f"{where} has gaps, {tuple(a.shape)} {a.stride()} at {site()}"] += 1
    size = grid(options) if callable(grid) else grid
    if any(n > limit for n, limit in zip(size, GRID_LIMITS, strict=False)) or min(size) < 1:
        watch.problems[f"triton {name}: grid {size} at {site()}"] += 1


def tuned(tuner: Any, *args: Any, **options: Any) -> None:
    """Replace Triton's autotuner, which needs a GPU to time on, by its first configuration."""
    tuner.fn.run(*args, **options, **tuner.configs[0].all_kwargs())


def install() -> None:
    JITFunction.run = launched  # type: ignore[method-assign]
    Autotuner.run = tuned
