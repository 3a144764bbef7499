"""The tensors of a Triton launch: by the names of the kernel's pointers, and lists of tensors as one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def pointers(kernel: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors for all arguments NAME_ptr of `kernel`; one that `tensors` lacks is a KeyError.

    What a launch does not read is an empty tensor, so that a read by mistake is no other tensor's values.
    """
    return {name: tensors[name.removesuffix("_ptr")] for name in kernel.arg_names if name.endswith("_ptr")}


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor with a new first axis: a view if they are contiguous one after the other, else a copy."""
    first = tensors[0]
    if len(tensors) == 1:
        return first.contiguous().unsqueeze(0)
    together = all(
        t.is_contiguous()
        and t.untyped_storage()._cdata == first.untyped_storage()._cdata
        and t.storage_offset() == first.storage_offset() + i * first.numel()
        for i, t in enumerate(tensors)
    )
    if together and not torch._C._functorch.is_functorch_wrapped_tensor(first):
        return first.as_strided((len(tensors), *first.shape), (first.numel(), *first.stride()))
    return torch.stack(list(tensors))
