"""A stand-in for apex's `amp_C`: the checks of its bindings and of its C++, and the arithmetic of its kernel.

As in csrc/multi_tensor_adam.cu and csrc/multi_tensor_apply.cuh of apex: the kernel walks through the memory of each
tensor, without strides, reads lr, the step and the scale on the device, and moves nothing where the flag is 1.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels.adam_unroll import Rule, reference

CHUNK = 2048 * 32


def multi_tensor_adam_capturable(
    chunk_size: int,
    noop_flag: Tensor,
    tensor_lists: list[list[Tensor]],
    lr: Tensor,
    beta1: float,
    beta2: float,
    epsilon: float,
    step: Tensor,
    mode: int,
    bias_correction: int,
    weight_decay: float,
    inv_scale: Tensor,
) -> None:
    for name, number in (("chunk_size", chunk_size), ("mode", mode), ("bias_correction", bias_correction)):
        check(type(number) is int, f"{name} is an int")
    for name, value in (("beta1", beta1), ("beta2", beta2), ("epsilon", epsilon), ("weight_decay", weight_decay)):
        check(type(value) is float, f"{name} is a float")
    device = tensor_lists[0][0].device
    pointers = (noop_flag, torch.int32), (lr, torch.float32), (step, torch.int32), (inv_scale, torch.float32)
    for tensor, dtype in pointers:
        check(tensor.dtype == dtype, f"expected scalar type {dtype} but found {tensor.dtype}")
        check(tensor.numel() == 1 and tensor.device == device, "one number on the device is read")
    check(len(tensor_lists) == 4, "tensor_lists.size() != depth")
    check(len({len(tensors) for tensors in tensor_lists}) == 1, "Size mismatch among tensor lists")
    check(mode == 0 and bias_correction == 1 and weight_decay == 0, "the stand-in knows Adam without weight decay")
    for g, *rest in zip(*tensor_lists, strict=True):
        for x in (g, *rest):
            last = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
            check(x.is_contiguous() or last, "A tensor was not contiguous.")
            check(x.device == device and x.dtype == torch.float32, "tensors are float32 on one device")
            check(x.numel() == g.numel(), "Size mismatch")
        memory = [x.as_strided((x.numel(),), (1,)) for x in (g, *rest)]
        memory[0].copy_(torch.where(noop_flag == 1, memory[0], memory[0] * inv_scale))
        g, p, m, v = memory
        moved = reference.step(p, g, m, v, step.reshape(()), lr.reshape(()), Rule(beta1, beta2, epsilon, 0.0))
        for place, x in zip((p, m, v), moved, strict=True):
            place.copy_(torch.where(noop_flag == 1, place, x))


def check(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


def applied(op: Any, noop_flag: Tensor, tensor_lists: list[list[Tensor]], *arguments: Any) -> Any:
    """`apex.multi_tensor_apply.multi_tensor_applier`."""
    return op(CHUNK, noop_flag, tensor_lists, *arguments)


@contextmanager
def installed() -> Iterator[None]:
    """Let `import amp_C` and `import apex` find the stand-in."""
    amp_c, apex, apply = ModuleType("amp_C"), ModuleType("apex"), ModuleType("apex.multi_tensor_apply")
    amp_c.multi_tensor_adam_capturable = multi_tensor_adam_capturable  # type: ignore[attr-defined]
    apply.multi_tensor_applier = applied  # type: ignore[attr-defined]
    modules = {"amp_C": amp_c, "apex": apex, "apex.multi_tensor_apply": apply}
    before = {name: sys.modules.get(name) for name in modules}  # others may be imported for good inside the block
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
