"""Lists of tensors as the one tensor that a kernel reads."""

from collections.abc import Sequence

import torch
from torch import Tensor


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor with a new first axis: a view if the tensors are contiguous in memory one after the other, else a copy."""
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
