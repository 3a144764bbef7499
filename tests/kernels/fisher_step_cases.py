"""Inputs of the parts of a Fisher lower step."""

import torch
from torch import Tensor

SIZES = [(1, 1, 1, 1), (1, 7, 5, 33), (3, 25, 10, 63), (2, 100, 50, 100)]


def inputs(size: tuple[int, int, int, int], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    S, B, H, E = size
    generator = torch.Generator().manual_seed(sum(size))
    shapes = {"out": (B, 2 * H), "eps": (S, B, H), "y": (S * B, E), "slope": (S * B, H), "weight": (B,)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for name, shape in shapes.items()
    }


def results(parts, x: dict[str, Tensor], scale: Tensor | None, out: Tensor | None = None) -> list[Tensor]:
    out = x["out"] if out is None else out
    r, r_bar = parts.residual(x["slope"], out, x["eps"], x["weight"])
    bars = parts.outputs_bar(x["slope"], r_bar, out, x["eps"], scale)
    one = parts.residual(x["slope"], out, x["eps"], x["weight"][0])
    return [parts.sample(out, x["eps"]), parts.slope(x["y"]), r, r_bar, *one, parts.curved(x["y"] - 1, x["y"]), bars]
