"""Errors that name an op's argument, what was got and what is expected."""

from collections.abc import Mapping

from torch import Tensor


def expect_grbm(
    op: str,
    v: Tensor,
    W: Tensor,
    b: Tensor,
    c: Tensor,
    log_sigma: Tensor,
    more: Mapping[str, tuple[Tensor, tuple[str, ...]]],
) -> None:
    """A GRBM's arguments: W [..., D, H] decides, leading axes are replicas; `more` names tensors and their own axes."""
    if W.dim() < 2:
        raise ValueError(f"{op} got W of shape {tuple(W.shape)}; expected [..., D, H]")
    if not W.is_floating_point():
        raise ValueError(f"{op} got W of dtype {W.dtype}; expected a floating dtype")
    lead, (D, H) = tuple(W.shape[:-2]), W.shape[-2:]
    if v.dim() != W.dim():
        raise ValueError(f"{op} got v of shape {tuple(v.shape)}; expected {(*lead, 'B', D)}")
    sizes = {"B": v.shape[-2], "D": D, "H": H}
    expected = {"v": (v, ("B", "D")), "b": (b, ("D",)), "c": (c, ("H",)), "log_sigma": (log_sigma, ("D",)), **more}
    for name, (t, axes) in expected.items():
        shape = (*lead, *(sizes[axis] for axis in axes))
        if tuple(t.shape) != shape:
            raise ValueError(f"{op} got {name} of shape {tuple(t.shape)}; expected {shape}")
        expect_dtype_and_device(op, name, t, W)


def expect_dtype_and_device(op: str, name: str, t: Tensor, W: Tensor) -> None:
    """An argument's dtype and device are W's."""
    for what in ("dtype", "device"):
        got, wanted = getattr(t, what), getattr(W, what)
        if got != wanted:
            raise ValueError(f"{op} got {name} of {what} {got}; expected that of W, {wanted}")
