"""WebDataset shards: the samples that a folder of the same pictures gives, by every input; hostile archives refused."""

import importlib.util
import io
import itertools
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import eblvm
from eblvm.engine.cli import main
from eblvm.engine.data import members, tar
from eblvm.engine.data.input import open_input
from eblvm.engine.data.pictures.framing import Framing, PillowDecoder, has_dali
from eblvm.engine.data.readers import read, shards
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe

from .conftest import smooth
from .test_training import state_of

needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
has_webdataset = importlib.util.find_spec("webdataset") is not None
COUNT, PER_SHARD = 44, 11
TINY = "--width 4 --posterior-width 4 --batch 4 --validations 1 --checkpoint-every 3 --size 16".split()

Sample = dict[str, bytes]  # suffix -> content


def samples(count: int = COUNT) -> list[tuple[str, Sample]]:
    found = []
    for i in range(count):
        buffer = io.BytesIO()
        Image.fromarray(smooth(i, 20 + i % 3, 24)).save(buffer, "PNG")
        found.append((f"part.v1/{i:06}", {"cls": str(i % 7).encode(), "json": b"{}", "png": buffer.getvalue()}))
    return found


def by_tarfile(path: Path, chosen: list[tuple[str, Sample]]) -> None:
    with tarfile.open(path, "w") as archive:
        for key, sample in chosen:
            for suffix, content in sample.items():
                info = tarfile.TarInfo(f"{key}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))


def by_webdataset(path: Path, chosen: list[tuple[str, Sample]]) -> None:
    import webdataset

    with webdataset.TarWriter(str(path)) as archive:
        for key, sample in chosen:
            archive.write({"__key__": key} | sample)


WRITERS = [
    by_tarfile,
    pytest.param(by_webdataset, marks=pytest.mark.skipif(not has_webdataset, reason="pip install webdataset")),
]


def packed(folder: Path, write: Callable[[Path, list[tuple[str, Sample]]], None] = by_tarfile) -> Path:
    folder.mkdir()
    for i in range(COUNT // PER_SHARD):
        write(folder / f"faces-{i:06}.tar", samples()[i * PER_SHARD : (i + 1) * PER_SHARD])
    return folder


def unpacked(folder: Path) -> Path:
    folder.mkdir()
    for key, sample in samples():
        (folder / f"{Path(key).name}.png").write_bytes(sample["png"])
    return folder


@pytest.mark.parametrize("write", WRITERS)
def test_every_picture_and_class_in_their_order(write: Callable, tmp_path: Path) -> None:
    folder = packed(tmp_path / "shards", write)
    for path in (folder, folder / "faces-{000000..000003}.tar"):
        contents = read(path)
        assert contents.kind == "WebDataset shards"
        found = [file.read_bytes() for split in contents.splits.values() for file in split.images.files]
        assert found == [sample["png"] for _, sample in samples()]
        labels = np.concatenate([split.labels for split in contents.splits.values()])
        assert labels.tolist() == [i % 7 for i in range(COUNT)]
        assert {name: len(split.images) for name, split in contents.splits.items()} == {
            "train": 40,
            "valid": 2,
            "test": 2,
        }
        last = contents.splits["test"].images.files[-1]
        assert last.name == "faces-000003.tar/part.v1/000043.png"
    alone = read(folder / "faces-000002.tar")
    assert alone.total == PER_SHARD


def test_patterns() -> None:
    assert shards.expanded(Path("a/x-{008..011}.tar")) == [Path(f"a/x-{n:03}.tar") for n in range(8, 12)]
    assert shards.expanded(Path("{train,val}-{9..10}.tar")) == [
        Path(f"{a}-{n}.tar") for a, n in itertools.product(("train", "val"), (9, 10))
    ]
    for bad in ("x-{5..3}.tar", "x-{0..99999999999}.tar", "{0..99999}{0..99999}.tar"):
        with pytest.raises(UserError, match=r"names -?\d+ shards"):
            shards.expanded(Path(bad))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("path", ["memory", "pillow", pytest.param("dali", marks=needs_dali)])
def test_shards_give_what_a_folder_gives(path: str, channels: int, tmp_path: Path) -> None:
    """The same minibatches, by one process or two, also after a start in the middle."""
    base = recipe("images").replaced(size=16, channels=channels, batch=8, flip=True, cache=str(tmp_path / "cache"))
    base = base.replaced(split_seed=None)  # shards keep their own order
    seed, found = torch.tensor(3), []
    for source in (unpacked(tmp_path / "folder"), packed(tmp_path / "shards")):
        options = base.replaced(data=str(source), input=path).dataset
        dataset = options.load(True)
        whole = [open_input(options, dataset, seed, 8).batch(step) for step in range(12)]
        ranks = [open_input(options, dataset, seed, 8, rank=rank, world=2) for rank in range(2)]
        for step in (7, 8):
            assert torch.equal(torch.cat([rank.batch(step) for rank in ranks]), whole[step])
        found.append((torch.stack(whole), dataset))
    assert found[0][0].shape == (12, 8, channels, 16, 16)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1].valid, found[1][1].valid)
    expected = PillowDecoder(Framing(16))([samples()[0][1]["png"]])[0]
    assert channels == 1 or (found[1][1].train[:1][0].short() - torch.from_numpy(expected.copy())).abs().max() <= 1


@pytest.mark.parametrize("path", ["pillow", pytest.param("dali", marks=needs_dali)])
def test_training_from_shards_resumes_bitwise(path: str, tmp_path: Path) -> None:
    data = str(packed(tmp_path / "shards") / "faces-{000000..000003}.tar")
    options = ["images", "--data", data, *TINY, "--input", path, "--flip", "--cache", str(tmp_path / "cache")]
    for out, stops in (("whole", (8,)), ("parts", (3, 8))):
        for steps in stops:
            length = ["--schedule", "constant", "--steps", str(steps), "--out", str(tmp_path / out)]
            assert main(["train", *options, *length]) == 0
    for a, b in zip(state_of(tmp_path / "whole"), state_of(tmp_path / "parts"), strict=True):
        assert torch.equal(a, b)


def test_from_python_and_prepared(tmp_path: Path, capsys) -> None:
    folder, store = packed(tmp_path / "shards"), tmp_path / "store"
    assert main(["data", "prepare", str(folder / "faces-{000000..000003}.tar"), str(store), "--size", "16"]) == 0
    assert "40 images, 3x16x16, labels 0 to 6" in capsys.readouterr().out
    sheet = str(tmp_path / "sheet.png")
    assert main(["data", "info", str(folder), "--sheet", sheet]) == 0
    settings = {"width": 4, "posterior_width": 4, "batch": 4, "steps": 2, "validations": 1, "size": 16}
    run = eblvm.train("images", data=folder, input="pillow", out=tmp_path / "run", cache=str(tmp_path), **settings)
    assert run.saved.shape == (3, 16, 16)


def test_the_index_is_small(tmp_path: Path) -> None:
    """A hundred bytes for a picture, of whatever size it is."""
    path, count = tmp_path / "many.tar", 5000
    by_tarfile(path, [(f"{i:08}", {"png": bytes(2000)}) for i in range(count)])
    tracemalloc.start()
    contents = read(path)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert contents.total == count
    assert held < 100 * count


def entry(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.USTAR_FORMAT)


def whole(tmp_path: Path, *more: tuple[str, Sample]) -> bytes:
    by_tarfile(tmp_path / "made.tar", [*samples(3), *more])
    return (tmp_path / "made.tar").read_bytes()


END = bytes(1024)


def cases(good: bytes, end: int) -> dict[str, tuple[bytes, str]]:
    png = samples(1)[0][1]["png"]
    padded = png + bytes(-len(png) % 512)
    return {
        "cut between two files": (good[:end], "ends at byte .* with no end mark; it may be truncated"),
        "cut within a picture": (good[: end - 600], r"000002\.png claims .* bytes, .* are left; it may be truncated"),
        "cut within a header": (good[: end + 100], "with no end mark"),
        "a flipped bit": (bytes([good[0] ^ 1]) + good[1:], r"has no tar header at byte 0 \(bad checksum\)"),
        "no tar": (b"hello, world" * 100, "has no tar header at byte 0"),
        "gzipped": (b"\x1f\x8b" + bytes(600), "is packed, so nothing in it can be read alone; unpack it"),
        "a link": (entry("a.png", 0, tarfile.SYMTYPE) + END, "a.png is a link, a device or a file with holes"),
        "a device": (entry("a.png", 0, tarfile.CHRTYPE) + END, "a.png is a link, a device"),
        "holes": (entry("a.png", 0, tarfile.GNUTYPE_SPARSE) + END, "a.png is a link, a device"),
        "a long header": (
            entry("x", 1 << 21, tarfile.XHDTYPE) + bytes(1 << 21) + END,
            "header of 2,097,152 bytes, at most",
        ),
        "a header of another size": (
            entry("x", 20, tarfile.XHDTYPE) + b"20 size=99999999999\n" + bytes(492) + entry("a.png", 0) + END,
            "has a header that cannot be read",
        ),
        "a header that lies": (
            entry("x", 12, tarfile.XHDTYPE) + b"99 path=abc\n" + bytes(500) + entry("a.png", 0) + END,
            "has a header that cannot be read",
        ),
        "two pictures": (
            entry("a.png", len(png)) + padded + entry("a.b.jpg", len(png)) + padded + END,
            r"a sample has the pictures a\.png and a\.b\.jpg, expected one",
        ),
        "a sample twice": (
            b"".join(entry(name, len(png)) + padded for name in ("a.png", "b.png", "a.png")) + END,
            "sample a appears twice",
        ),
        "no class": (
            entry("a.png", len(png)) + padded + entry("a.cls", 3) + b"cat".ljust(512, b"\0") + END,
            r"a\.cls has no whole number",
        ),
    }


@pytest.mark.parametrize("name", list(cases(b"0", 0)))
def test_hostile_archives_are_refused_by_name(name: str, tmp_path: Path) -> None:
    good = whole(tmp_path)
    end = len(good.rstrip(b"\0"))
    end += -end % 512
    content, sentence = cases(good, end)[name]
    path = tmp_path / "bad-0.tar"
    path.write_bytes(content)
    with pytest.raises(UserError, match=sentence) as told:
        read(tmp_path / "bad-{0..0}.tar")
    assert "bad-0.tar" in str(told.value)
    assert "\n" not in str(told.value)


def test_long_names_of_both_kinds(tmp_path: Path) -> None:
    name, content = f"{'deep/' * 60}{'n' * 120}.png", samples(1)[0][1]["png"]
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        path = tmp_path / f"long{kind}.tar"
        with tarfile.open(path, "w", format=kind) as archive:
            archive.addfile(tarfile.TarInfo("deep"))
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        assert list(tar.entries(path))[1].name == name
        ((found, label),) = shards.samples(members.TarShard.of(path))
        assert found.read_bytes() == content
        assert label is None


def test_what_changes_under_a_run_is_named(tmp_path: Path, monkeypatch) -> None:
    folder = packed(tmp_path / "shards")
    picture = read(folder).splits["train"].images.files[0]
    monkeypatch.setenv("EBLVM_MAX_BYTES", "100")
    with pytest.raises(UserError, match=r"faces-000000.tar/part.v1/000000.png needs .* bytes of memory"):
        picture.read_bytes()
    monkeypatch.delenv("EBLVM_MAX_BYTES")
    by_tarfile(folder / "faces-000000.tar", samples(3))
    with pytest.raises(UserError, match=r"faces-000000.tar has changed since it was indexed"):
        picture.read_bytes()
    (folder / "faces-000000.tar").unlink()
    with pytest.raises(UserError, match=r"faces-000000.tar can no longer be read \(No such file or directory\)"):
        picture.read_bytes()
    with pytest.raises(UserError, match=r"shard .*faces-000000.tar does not exist"):
        read(folder / "faces-{000000..000003}.tar")


def test_a_broken_picture_is_named_and_skipped_within_the_limit(tmp_path: Path, capsys) -> None:
    folder = packed(tmp_path / "shards")
    chosen = samples()[:PER_SHARD]
    chosen[4][1]["png"] = b"not a picture"
    by_tarfile(folder / "faces-000000.tar", chosen)
    command = ["data", "prepare", str(folder), str(tmp_path / "store"), "--size", "16"]
    assert main(command) == 2
    assert "faces-000000.tar/part.v1/000004.png cannot be read as a picture" in capsys.readouterr().err
    assert main([*command, "--skip", "0.1"]) == 0
    assert "39 images, 3x16x16, labels 0 to 6" in capsys.readouterr().out
    options = recipe("images").replaced(size=16, data=str(folder), input="pillow", batch=40, cache=str(tmp_path / "c"))
    stream = open_input(options.dataset, options.dataset.load(True), torch.tensor(3), 40)
    with pytest.raises(UserError, match=r"faces-000000.tar/part.v1/000004.png cannot be read as a picture"):
        stream.batch(0)


def test_pillow_s_stream_is_the_memory_s_to_one_level(tmp_path: Path) -> None:
    """The same samples in the same order, mirrored alike; another decoder may have made the store."""
    base = recipe("images").replaced(size=16, batch=8, flip=True, cache=str(tmp_path / "cache"))
    found = []
    for path in ("memory", "pillow"):
        options = base.replaced(data=str(tmp_path / "shards" if found else packed(tmp_path / "shards")), input=path)
        stream = open_input(options.dataset, options.dataset.load(True), torch.tensor(3), 8)
        found.append(torch.stack([stream.batch(step) for step in range(6)]))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1.01 / 255)
