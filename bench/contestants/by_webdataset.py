"""Pictures by WebDataset: shards of JPEGs, and of decoded arrays as FFCV and our store have them; and by Pillow."""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.bench.contestants.roster import contestant
from eblvm.bench.measurements import data


class Shards:
    """One call gives the next CHUNK pictures of a shard in its own order, again from its beginning when it ends."""

    def __init__(self, album: Any, decoded: bool):
        self.album, self.decoded = album, decoded
        self.path = album.scratch / f"{'arrays' if decoded else 'jpegs'}.tar"
        if not self.path.exists():
            self.write()
        self.chunks = iter(())

    def write(self) -> None:
        import webdataset

        with webdataset.TarWriter(str(self.path)) as shard:
            for i, path in enumerate(self.album.paths):
                content = {"npy": self.album.images[i].numpy()} if self.decoded else {"jpg": path.read_bytes()}
                shard.write({"__key__": f"{i:06d}", **content})

    def opened(self) -> Any:
        import webdataset

        shard = webdataset.WebDataset(str(self.path), shardshuffle=False).to_tuple("npy" if self.decoded else "jpg")
        pictures = shard.map_tuple(lambda b: np.load(io.BytesIO(b)) if self.decoded else self.album.decode([b])[0])
        return iter(pictures.batched(data.CHUNK))

    def pictures(self) -> Tensor:
        return self.next()

    def next(self) -> Tensor:
        chunk = next(self.chunks, None)
        if chunk is None:
            self.chunks = self.opened()
            chunk = next(self.chunks)
        return torch.from_numpy(np.asarray(chunk[0]))

    def __call__(self) -> None:
        self.next()


class OneByOne:
    """Pillow on every file."""

    def __init__(self, album: Any):
        self.album, self.step = album, data.Decoding(album.paths, album.decode)

    def pictures(self) -> Tensor:
        return torch.from_numpy(np.stack(self.album.decode([p.read_bytes() for p in self.album.paths[:10]])))

    def __call__(self) -> None:
        self.step()


@contestant("webdataset arrays", "data", needs="webdataset", tolerance=0.0)
def arrays(task: Any) -> Shards | None:
    return Shards(task.album, decoded=True) if task.source == "store" else None


@contestant("webdataset", "data", needs="webdataset", tolerance=0.0)
def jpegs(task: Any) -> Shards | None:
    return Shards(task.album, decoded=False) if task.source == "dali" else None


@contestant("pillow", "data", needs="PIL", tolerance=0.0)
def pillow(task: Any) -> OneByOne | None:
    return OneByOne(task.album) if task.source == "dali" else None
