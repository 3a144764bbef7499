"""`lazy("torch")` makes `import torch`, in any file, take no time until a name of torch is read.

Only the command line calls it, before anything else, so that help and errors appear at once. The library itself is
ordinary Python: without a call of `lazy` nothing changes but the start-up time. For a file to stay quick, annotations
are strings (`from __future__ import annotations`), and no name of a lazy module is read while the file is imported: not
by a decorator, a base class or an alias. `from torch import Tensor` reads one, so it belongs under TYPE_CHECKING, or an
annotation says `torch.Tensor`.

A submodule of one of our own lazy packages is lazy too: `from eblvm.kernels import philox` reads nothing yet.
"""

import importlib.util
import sys
from threading import RLock
from types import ModuleType

OURS = "eblvm."
_lock = RLock()


class _Lazy(ModuleType):
    """A module that executes itself when one of its names is first read; other threads wait until it is done."""

    def __getattr__(self, name: str) -> object:
        with _lock:
            if self.__dict__.get("_loading"):  # read by its own code: the name is not defined yet
                raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
            if type(self) is _Lazy:
                if (child := self._submodule(name)) is not None:
                    return child
                self._load()
        return getattr(self, name)

    def _submodule(self, name: str) -> ModuleType | None:
        path = self.__dict__.get("__path__")
        if path is None or name.startswith("_"):
            return None
        return lazy(f"{self.__name__}.{name}")

    def _load(self) -> None:
        spec = self.__spec__
        assert spec is not None
        assert spec.loader is not None
        self.__dict__["_loading"] = True
        try:
            if spec.submodule_search_locations is not None:
                self.__path__ = spec.submodule_search_locations
            spec.loader.exec_module(self)
            self.__class__ = ModuleType  # type: ignore[assignment]
        finally:
            del self.__dict__["_loading"]


def lazy(name: str) -> ModuleType | None:
    """Register the module `name`, to be executed on first use. Return it, or None if there is no such module."""
    if name in sys.modules:
        return sys.modules[name]
    if (spec := importlib.util.find_spec(name)) is None:
        return None
    module = _Lazy(name)
    module.__spec__, module.__file__, module.__package__ = spec, spec.origin, spec.parent
    module.__loader__ = spec.loader
    # The path of another project's package is known after executing it, as in an ordinary import of its submodules.
    if name.startswith(OURS) and spec.submodule_search_locations is not None:
        module.__path__ = spec.submodule_search_locations
    sys.modules[name] = module
    return module
