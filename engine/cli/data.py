"""`eblvm data`: `prepare` a store of pictures, `info` on anything that `--data` accepts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from eblvm.engine.cli.parser import Parser, at_least, print_next, write_json
from eblvm.engine.data.sets.images import Images
from eblvm.engine.errors import UserError, printable, unknown

if TYPE_CHECKING:
    from eblvm.engine.data.contents import Contents, Split

SHEET = 100  # images of the contact sheet
SHOWN_CLASSES = 10
PUBLISHED = {True: "yes, by checksum", False: "no, others of the same form", None: "no checksum known"}
RECIPES = {"MNIST": "mnist", "CIFAR-10": "cifar10", "SVHN": "svhn", "Frey": "freyface", "CelebA": "celeba"}
EXAMPLES = ("eblvm data prepare celeba/ celeba64.store --size 64", "eblvm data info cifar-10-python.tar.gz")
PREPARE = (EXAMPLES[0], "eblvm data prepare photos/ photos.store --size 48 --crop 1 --skip 0.01")
INFO = (EXAMPLES[1], "eblvm data info celeba64.store --sheet faces.png --json faces.json")
USAGE = """\
usage: eblvm data prepare SRC DST ...   decode, crop and resize once, into a memory-mapped store
       eblvm data info PATH             what it is, counts, shapes and splits, and a contact sheet
"""


def main(argv: list[str]) -> None:
    if not argv:
        raise UserError("give a command, 'eblvm data prepare SRC DST' or 'eblvm data info PATH'")
    if argv[0] in ("-h", "--help"):
        print(USAGE + "\nexamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES))
        return
    kinds = {"prepare": prepare_store, "info": info}
    if argv[0] not in kinds:
        raise unknown("command", f"data {argv[0]}", [f"data {kind}" for kind in kinds])
    kinds[argv[0]](argv[1:])


def prepare_store(argv: list[str]) -> None:
    from eblvm.engine.data.pictures.prepare import SKIP_LIMIT, prepare

    parser = Parser("data prepare", "Decode, crop and resize pictures once, into a memory-mapped store.", PREPARE)
    parser.add_argument("source", metavar="SRC", type=Path, help="published files, a folder of pictures, or shards")
    parser.add_argument("folder", metavar="DST", type=Path, help="folder of the store; an unfinished one is continued")
    parser.add_argument("--size", type=int, help="pixels of an image, such as 32, 64 or 128")
    parser.add_argument("--crop", type=float, help="fraction of the width to keep (CelebA: 140/178; others: a square)")
    parser.add_argument("--decoder", choices=["dali", "pillow"], help="default: DALI where it is installed")
    parser.add_argument("--threads", type=int, default=1, help="of DALI")
    parser.add_argument("--skip", type=float, default=SKIP_LIMIT, help="fraction of pictures that may be unreadable")
    parser.add_json()
    arguments = parser.parse(argv)
    at_least(arguments, threads=1, size=1)
    for name in ("crop", "skip"):
        if (value := getattr(arguments, name)) is not None and not 0 <= value <= 1:
            raise UserError(f"got --{name} {value}, expected a fraction from 0 to 1")
    from eblvm.engine.data.pictures import store
    from eblvm.engine.data.readers import read

    made = prepare(
        arguments.source,
        divided(read(arguments.source)),
        arguments.folder,
        arguments.size,
        crop_fraction=arguments.crop,
        decoder=arguments.decoder,
        threads=arguments.threads,
        skip_limit=arguments.skip,
    )
    facts = describe(made.contents())
    show(arguments.folder, facts)
    if made.manifest.skipped:
        print(f"  skipped           {len(made.manifest.skipped)}, listed in {arguments.folder / store.MANIFEST}")
    write_json(arguments.json, facts)
    print_next(("train", *recipe_of(facts).split(), "--data", arguments.folder))


def info(argv: list[str]) -> None:
    parser = Parser("data info", "What a data set is: counts, shapes and splits, and a contact sheet.", INFO)
    parser.add_argument("path", metavar="PATH", type=Path, help="anything that --data accepts")
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="contact sheet (default NAME-sheet.png)")
    parser.add_json()
    arguments = parser.parse(argv)
    from eblvm.engine.data.readers import read

    contents = divided(read(arguments.path))
    facts = describe(contents)
    show(arguments.path, facts)
    sheet = arguments.sheet or Path(f"{arguments.path.resolve().name}-sheet.png")
    contact_sheet(contents, sheet)
    print(f"  contact sheet     {sheet}")
    write_json(arguments.json, facts)
    print_next(("train", *recipe_of(facts).split(), "--data", arguments.path))


def divided(contents: Contents) -> Contents:
    """Images of one's own as recipe `images` divides them; published ones as they are."""
    own = recipe_of(describe(contents)).startswith("images")
    return contents.divided(seed=Images().split_seed) if own else contents


def describe(contents: Contents) -> dict[str, Any]:
    """Kind, counts and shapes by split, labels, and whether the files are the published ones."""
    return {
        "kind": contents.kind,
        "splits": {name: {"count": len(s.images), "shape": _shape(s)} for name, s in contents.splits.items()},
        "labels": {name: _labels(s, contents.classes) for name, s in contents.splits.items() if s.labels is not None},
        "classes": list(contents.classes),
        "attributes": list(contents.attributes),
        "published": contents.published,
    }


def recipe_of(facts: dict[str, Any]) -> str:
    """The recipe of a published set; `images`, with the size of the images, for any other."""
    kind, (split, *_) = facts["kind"].removeprefix("store of "), facts["splits"].values()
    size = split["shape"][-1] if split["shape"] else 64
    known = next((recipe for name, recipe in RECIPES.items() if kind.startswith(name)), "images")
    if known == "celeba":
        return f"celeba{size}" if size in (32, 64, 128) else f"celeba64 --size {size}"
    return f"images --size {size}" if known == "images" else known


def show(path: Path, facts: dict[str, Any]) -> None:
    print(f"{path}: {facts['kind']}")
    for name, split in facts["splits"].items():
        shape = "x".join(map(str, split["shape"])) if split["shape"] else "pictures of any size"
        labels = facts["labels"].get(name)
        print(f"  {name:<17} {split['count']} images, {shape}" + (f", {labels}" if labels else ""))
    print(f"  published files   {PUBLISHED[facts['published']]}")


def _shape(split: Split) -> list[int] | None:
    from eblvm.engine.data.contents import Pictures

    return None if isinstance(split.images, Pictures) else list(split.images.shape[1:])


def _labels(split: Split, classes: tuple[str, ...]) -> str:
    assert split.labels is not None
    if split.labels.ndim == 2:
        return f"{split.labels.shape[1]} attributes"
    if classes:
        counts = np.bincount(split.labels, minlength=len(classes)).tolist()
        shown = [f"{printable(name)} {count}" for name, count in zip(classes, counts, strict=True)]
        return f"{len(classes)} classes: {', '.join(shown[:SHOWN_CLASSES])}{', ...' * (len(shown) > SHOWN_CLASSES)}"
    return f"labels {split.labels.min()} to {split.labels.max()}"


def contact_sheet(contents: Contents, path: Path) -> None:
    """Images at even distances through the first split."""
    from eblvm.engine.data.contents import Pictures
    from eblvm.engine.data.pictures.framing import Framing, PillowDecoder
    from eblvm.engine.evaluation.plots import image_grid

    images = next(iter(contents.splits.values())).images
    places = np.linspace(0, len(images) - 1, min(SHEET, len(images))).astype(int)
    if isinstance(images, Pictures):
        decode = PillowDecoder(Framing(64, contents.crop_fraction))
        decoded = decode([images.files[i].read_bytes() for i in places])
        rows = np.stack([np.zeros((3, 64, 64), np.uint8) if isinstance(one, str) else one for one in decoded])
    else:
        rows = np.asarray(images[places])
    image_grid(torch.from_numpy(rows) / 255, path)
