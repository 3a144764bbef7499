"""The launches of the Triton kernels on CPU tensors, compiled as on a GPU and not run.

Triton's own binder, specialisation and compiler work on the arguments that an op gives its kernels; only the driver of
the GPU is replaced.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from eblvm.kernels.runtime.triton_report import target


@contextlib.contextmanager
def compiled_only(capability: int) -> Iterator[list[CompiledKernel]]:
    """Launches compile for `capability` and do not run; what they compiled, in their order."""
    run, kernels = JITFunction.run, []

    def compiles(self: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> CompiledKernel:
        kernels.append(run(self, *arguments, grid=grid, warmup=True, **options))
        return kernels[-1]

    JITFunction.run = compiles
    try:
        with target(capability):
            yield kernels
    finally:
        JITFunction.run = run
