"""Stores that training makes by itself of a folder of pictures, kept apart from the user's own files."""

import hashlib
import os
import sys
from functools import partial
from pathlib import Path

from eblvm.engine.data.contents import Contents, Pictures
from eblvm.engine.data.members import Member
from eblvm.engine.data.pictures import store
from eblvm.engine.data.pictures.framing import PIXEL_RULES
from eblvm.engine.data.pictures.prepare import prepare
from eblvm.engine.durable import take_lock
from eblvm.engine.errors import printable


def root(given: str | None) -> Path:
    """--cache, $EBLVM_CACHE, $XDG_CACHE_HOME/eblvm, or ~/.cache/eblvm: the first that is set."""
    if chosen := given or os.environ.get("EBLVM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eblvm"


def cached(source: Path, contents: Contents, size: int, given: str | None, threads: int) -> store.Store:
    """The store of these pictures at this size, prepared now if it is not there. Another process's work is awaited."""
    key = pictures_digest(contents, size)
    splits = "" if len(contents.splits) == 3 else "-" + "-".join(contents.splits)
    folder = root(given) / f"{source.resolve().name}-{size}{splits}-{key[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with take_lock(folder.parent / f".{folder.name}.lock", wait=True):
        if (folder / store.MANIFEST).exists():
            return store.open_store(folder)
        say = partial(print, file=sys.stderr)
        say(f"preparing {printable(source)} at {size} pixels, once, into {printable(folder)}")
        return prepare(source, contents, folder, size, threads=threads, fingerprint=key, say=say)


def pictures_digest(contents: Contents, size: int) -> str:
    """A digest of the settings and of every picture's split, name, length and time of change."""
    digest = hashlib.sha256(f"{store.VERSION} {PIXEL_RULES} {size} {contents.crop_fraction}\n".encode())
    for name, split in contents.splits.items():
        assert isinstance(split.images, Pictures)
        for file in split.images.files:
            if isinstance(file, Member):
                identity = file.identity
            else:
                facts = file.stat()
                identity = f"{file} {facts.st_size} {facts.st_mtime_ns}"
            digest.update(os.fsencode(f"{name} {identity}\n"))
    return digest.hexdigest()
