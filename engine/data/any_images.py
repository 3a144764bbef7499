"""Images of one's own, of any size: a folder of pictures, or arrays, as squares of one size."""

import sys

import torch
from torch import Tensor

from eblvm.engine.data.cache import cached
from eblvm.engine.data.contents import Contents, Split
from eblvm.engine.data.dataset import Dataset, resized
from eblvm.engine.data.images import dataset_of, path_of, pixels
from eblvm.engine.data.kinds.files import Images
from eblvm.engine.data.readers import read

LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in grey (ITU-R 601)


def load_any(options: Images, threads: int) -> Dataset:
    """The centre square of every image at --size pixels; pictures are prepared once and cached."""
    path = path_of(options)
    contents = read(path).divided()
    if contents.pictures:
        made = cached(path, contents, options.size, options.cache, threads, lambda line: print(line, file=sys.stderr))
        contents = made.contents()
    splits = {
        name: Split(squares(torch.from_numpy(pixels(split)), options).numpy(), split.labels)
        for name, split in contents.splits.items()
    }
    return dataset_of(path, Contents(contents.kind, splits), options)


def squares(v: Tensor, options: Images) -> Tensor:
    """uint8 images [n, C, H, W] as [n, channels, size, size]."""
    side = min(v.shape[-2:])
    top, left = (v.shape[-2] - side) // 2, (v.shape[-1] - side) // 2
    v = resized(v[..., top : top + side, left : left + side].contiguous(), options.size)
    if v.shape[1] == options.channels:
        return v
    if options.channels == 3:
        return v[:, :1].expand(-1, 3, -1, -1).contiguous()
    weights = torch.tensor(LUMA).view(1, 3, 1, 1)
    return torch.cat([(chunk[:, :3] * weights).sum(1, keepdim=True).round().byte() for chunk in v.split(4096)])
