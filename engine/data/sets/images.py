"""Images of one's own: a folder of pictures, shards of them, or arrays, as squares of one size."""

from __future__ import annotations

import torch

from eblvm.engine.data.contents import Contents
from eblvm.engine.data.sets.base import PictureData
from eblvm.engine.options import option


class Images(PictureData):
    """The centre square of every image at --size pixels."""

    kind = "images"

    size: int = option(32, "pixels of a side, a multiple of 8; the centre square is resized to it", low=8)
    split_seed: int | None = option(  # type: ignore[misc]
        0,
        "shuffles images that come without splits, class by class, before they are divided; none: by name",
        low=0,
    )
    channels: int = option(3, "1 for grey, 3 for colours", choices=(1, 3))

    @property
    def stored_shape(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.channels, self.size, self.size

    def squares(self, contents: Contents) -> Contents:
        splits = {
            name: split._replace(images=self.square(torch.from_numpy(split.array())).numpy())
            for name, split in contents.splits.items()
        }
        return contents._replace(splits=splits)

    def square(self, v: torch.Tensor) -> torch.Tensor:
        """uint8 images [n, C, H, W] as [n, channels, size, size]."""
        from eblvm.engine.data.dataset import grey, resized

        side = min(v.shape[-2:])
        top, left = (v.shape[-2] - side) // 2, (v.shape[-1] - side) // 2
        v = resized(v[..., top : top + side, left : left + side].contiguous(), self.size)
        if v.shape[1] == self.channels:
            return v
        return v[:, :1].expand(-1, 3, -1, -1).contiguous() if self.channels == 3 else grey(v)
