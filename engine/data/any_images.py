"""Images of one's own, of any size: a folder of pictures, shards of them, or arrays, as squares of one size."""

import torch
from torch import Tensor

from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.dataset import Dataset, grey, resized
from eblvm.engine.data.images import dataset_of, of_pictures, path_of, pixels
from eblvm.engine.data.readers import read
from eblvm.engine.data.sets.files import Images


def load_any(options: Images, threads: int) -> Dataset:
    """The centre square of every image at --size pixels; pictures are prepared once and cached, or streamed."""

    def in_squares(contents: Contents) -> Contents:
        splits = {
            name: Split(squares(torch.from_numpy(pixels(split)), options).numpy(), split.labels)
            for name, split in contents.splits.items()
        }
        return Contents(contents.kind, splits)

    path = path_of(options)
    contents = read(path).divided()
    if contents.pictures:
        return of_pictures(options, path, contents, threads, in_squares)
    return dataset_of(path, in_squares(contents), options)


def squares(v: Tensor, options: Images) -> Tensor:
    """uint8 images [n, C, H, W] as [n, channels, size, size]."""
    side = min(v.shape[-2:])
    top, left = (v.shape[-2] - side) // 2, (v.shape[-1] - side) // 2
    v = resized(v[..., top : top + side, left : left + side].contiguous(), options.size)
    if v.shape[1] == options.channels:
        return v
    if options.channels == 3:
        return v[:, :1].expand(-1, 3, -1, -1).contiguous()
    return grey(v)
