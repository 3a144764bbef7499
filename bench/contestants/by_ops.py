"""Single ops by others' means: the reference under `torch.compile`, torch's and JAX's random numbers, JAX's product."""

from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config as inductor

from eblvm.bench.contestants.by_jax import arrays, import_jax
from eblvm.bench.contestants.roster import contestant

Make = Callable[[torch.dtype], Callable[[], Any]]
OTHER_NUMBERS = (
    "Other numbers of the same distribution, which depend on the batch's split and on what was drawn before."
)


@contestant("torch.compile", "kernels")
def compiled_reference(task: Any) -> Make | None:
    if task.row.op == "philox":
        return None  # its reference works on 64-bit integers, which take the compiler minutes
    inductor.compile_threads = 1

    def make(dtype: torch.dtype) -> Callable[[], Any]:
        function = torch.compile(task.row.make(dtype)[1])
        return torch.no_grad()(function)

    return make


@contestant("torch", "kernels", deviation=OTHER_NUMBERS)
def torch_random(task: Any) -> Make | None:
    return (lambda dtype: lambda: torch.randn(100, 560, dtype=dtype)) if task.row.op == "philox" else None


@contestant("jax", "kernels", needs="jax", deviation=OTHER_NUMBERS)
def jax_random(task: Any) -> Make | None:
    if task.row.op != "philox":
        return None

    def make(dtype: torch.dtype) -> Callable[[], Any]:
        jax = import_jax()
        keys = [jax.random.key(0)]

        @jax.jit
        def draw(key: Any) -> Any:
            key, used = jax.random.split(key)
            return key, jax.random.normal(used, (100, 560))

        def step() -> None:
            keys[0], numbers = draw(keys[0])
            numbers.block_until_ready()

        return step

    return make


@contestant("jax", "kernels", task="product", needs="jax")
def jax_product(task: Any) -> Make:
    def make(dtype: torch.dtype) -> Callable[[], Any]:
        jax = import_jax()
        with jax.enable_x64(dtype == torch.float64):
            factors = [arrays(factor) for factor in task.factors(dtype)]
        multiply = jax.jit(lambda left, right: left @ right)

        def step() -> Any:
            with jax.enable_x64(dtype == torch.float64):
                return multiply(*factors).block_until_ready()

        return step

    return make
