"""autograd Functions that start quickly."""

from typing import Any

import torch


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
