"""The `data` subcommand of `eblvm`: `prepare` a store, `info` on anything that `--data` takes."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eblvm.engine.data import store
from eblvm.engine.data.contents import Contents, Pictures, Split
from eblvm.engine.data.framing import Framing, PillowDecoder
from eblvm.engine.data.prepare import SKIP_LIMIT, prepare
from eblvm.engine.data.readers import read
from eblvm.engine.errors import UserError

SHEET = 100  # images of the contact sheet
PUBLISHED = {True: "yes, by checksum", False: "no, others of the same form", None: "no checksum known"}


def add_commands(commands: Any) -> None:
    """Add `data` to the subparsers of `eblvm`."""
    data = commands.add_parser("data", help="prepare pictures for training, or say what a data set is")
    kinds = data.add_subparsers(dest="kind", metavar="COMMAND", parser_class=type(data), required=True)

    making = kinds.add_parser("prepare", help="decode, crop and resize once, into a memory-mapped store")
    making.add_argument("source", metavar="SRC", type=Path, help="files as they are published, or a folder of pictures")
    making.add_argument("folder", metavar="DST", type=Path, help="folder of the store; an unfinished one is continued")
    making.add_argument("--size", type=int, help="pixels of an image, such as 32, 64 or 128")
    making.add_argument("--crop", type=float, help="share of the width to keep (CelebA: 140/178; others: a square)")
    making.add_argument("--decoder", choices=["dali", "pillow"], help="default: DALI where it is installed")
    making.add_argument("--threads", type=int, default=1, help="of DALI")
    making.add_argument("--skip", type=float, default=SKIP_LIMIT, help="share of pictures that may be unreadable")
    making.set_defaults(run=command_prepare)

    info = kinds.add_parser("info", help="what it is, counts, shapes and splits, and a contact sheet")
    info.add_argument("path", metavar="PATH", type=Path, help="anything that --data takes")
    info.add_argument("--sheet", type=Path, metavar="FILE", help="contact sheet (default NAME-sheet.png)")
    info.set_defaults(run=command_info)
    for command in (making, info):
        command.add_argument("--json", metavar="FILE", help="write the figures to FILE")


def command_prepare(arguments: argparse.Namespace) -> None:
    from eblvm.engine.cli import at_least, write_json

    at_least(arguments, threads=1)
    if arguments.size is not None:
        at_least(arguments, size=1)
    for name in ("crop", "skip"):
        value = getattr(arguments, name)
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"got --{name} {value}, expected a share from 0 to 1")
    made = prepare(
        arguments.source,
        read(arguments.source),
        arguments.folder,
        arguments.size,
        share=arguments.crop,
        decoder=arguments.decoder,
        threads=arguments.threads,
        skip_limit=arguments.skip,
    )
    facts = describe(made.contents())
    show(arguments.folder, facts)
    if made.manifest.skipped:
        print(f"  skipped           {len(made.manifest.skipped)}, listed in {arguments.folder / store.MANIFEST}")
    write_json(arguments.json, facts)


def command_info(arguments: argparse.Namespace) -> None:
    from eblvm.engine.cli import write_json

    contents = read(arguments.path)
    facts = describe(contents)
    show(arguments.path, facts)
    sheet = arguments.sheet or Path(f"{arguments.path.resolve().name}-sheet.png")
    contact_sheet(contents, sheet)
    print(f"  contact sheet     {sheet}")
    write_json(arguments.json, facts)


def describe(contents: Contents) -> dict[str, Any]:
    """Kind, counts and shapes by split, labels, and whether the files are the published ones."""
    return {
        "kind": contents.kind,
        "splits": {name: {"count": len(s.images), "shape": _shape(s)} for name, s in contents.splits.items()},
        "labels": {name: _labels(s) for name, s in contents.splits.items() if s.labels is not None},
        "attributes": list(contents.attributes),
        "published": contents.published,
    }


def show(path: Path, facts: dict[str, Any]) -> None:
    print(f"{path}: {facts['kind']}")
    for name, split in facts["splits"].items():
        shape = "x".join(map(str, split["shape"])) if split["shape"] else "pictures of any size"
        labels = facts["labels"].get(name)
        print(f"  {name:<17} {split['count']} images, {shape}" + (f", {labels}" if labels else ""))
    print(f"  published files   {PUBLISHED[facts['published']]}")


def _shape(split: Split) -> list[int] | None:
    return None if isinstance(split.images, Pictures) else list(split.images.shape[1:])


def _labels(split: Split) -> str:
    assert split.labels is not None
    if split.labels.ndim == 2:
        return f"{split.labels.shape[1]} attributes"
    return f"labels {split.labels.min()} to {split.labels.max()}"


def contact_sheet(contents: Contents, path: Path) -> None:
    """Images at even distances through the first split."""
    from eblvm.engine.evaluation.plots import image_grid

    images = next(iter(contents.splits.values())).images
    places = np.linspace(0, len(images) - 1, min(SHEET, len(images))).astype(int)
    if isinstance(images, Pictures):
        decode = PillowDecoder(Framing(64, contents.share))
        found = decode([images.paths[i].read_bytes() for i in places])
        rows = np.stack([np.zeros((3, 64, 64), np.uint8) if isinstance(one, str) else one for one in found])
    else:
        rows = np.asarray(images[places])
    image_grid(torch.from_numpy(rows) / 255, path)
