"""The tensor of a tile, in a launch over a list of tensors.

Tiles are numbered through the list; `FIRST` has the number of every tensor's first tile. A program compares its number
with these, so no table of pointers is copied to the device.
"""

# The kernels are in a language of their own, which has no types.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def pointer(tile, pointers, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """The pointer of the tile's tensor."""
    own = pointers[0]
    for i in tl.static_range(1, COUNT):
        own = tl.where(tile >= FIRST[i], pointers[i], own)
    return own


@triton.jit
def number(tile, numbers: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr):
    """The entry of the tile's tensor in `numbers`."""
    own = tile * 0 + numbers[0]
    for i in tl.static_range(1, COUNT):
        own = tl.where(tile >= FIRST[i], numbers[i], own)
    return own
