"""Checkpoints: atomic, checksummed, loadable with `weights_only=True`, the newest undamaged one wins.

A checkpoint is `step-XXXXXXXX.pt` with `step-XXXXXXXX.pt.sha256`. The digest is written first, the file is renamed
into place last, so a checkpoint exists completely or not at all, whenever the process is killed.
"""

import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eblvm.engine.damage import damaged
from eblvm.engine.durable import make_folder, write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import from_tree

VERSION = 1
NAME = re.compile(r"step-(\d{8,})\.pt")
Check = Callable[[dict[str, Any]], None]  # raises UserError for a payload that cannot be used


def write(path: Path, payload: dict[str, Any]) -> None:
    """Save a tree of dicts, lists, tensors, numbers and strings with its digest."""
    buffer = io.BytesIO()
    torch.save({"version": VERSION, **payload}, buffer)
    content = buffer.getvalue()
    write_atomic(digest_of(path), hashlib.sha256(content).hexdigest().encode())
    write_atomic(path, content)


def read(path: Path, check: Check | None = None) -> dict[str, Any]:
    """Load and verify; a damaged file is an error that names it."""
    if not path.is_file() or not digest_of(path).is_file():
        raise UserError(f"checkpoint {path} or its .sha256 is missing; train the run again or copy both files")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest().encode() != digest_of(path).read_bytes().strip():
        raise UserError(
            f"checkpoint {path} is damaged (its SHA-256 does not match {digest_of(path).name}); copy it again"
        )
    return payload_of(path, content, check)


def payload_of(path: Path, content: bytes, check: Check | None = None) -> dict[str, Any]:
    """The content of a checkpoint, if it is of this format and of the step that its name says."""
    with damaged(f"checkpoint {path}", "cannot be loaded", "copy it again, or remove it"):
        payload = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    if not isinstance(payload, dict):
        raise UserError(f"checkpoint {path} is a {type(payload).__name__}, expected a dict; copy it again")
    if payload.get("version") != VERSION:
        raise UserError(f"checkpoint {path} has format {payload.get('version')}, expected {VERSION}; use that version")
    named = NAME.fullmatch(path.name)
    if named and (type(payload.get("step")) is not int or payload["step"] != int(named.group(1))):
        raise UserError(f"checkpoint {path} is of step {payload.get('step')}, expected that of its name; copy it again")
    for part in ("state", "best"):
        if part in payload and not isinstance(payload[part], dict):
            raise UserError(f"checkpoint {path} has no dict as {part!r}; copy it again")
    if check is not None:
        check(payload)
    return payload


def steps(folder: Path) -> list[int]:
    names = [NAME.fullmatch(p.name) for p in folder.glob("step-*.pt")]
    return sorted((int(m.group(1)) for m in names if m), reverse=True)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.pt"


def digest_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def save(folder: Path, step: int, payload: dict[str, Any], keep: int) -> None:
    """Write the checkpoint of `step` and drop older ones, so that `keep` are left."""
    make_folder(folder, parents=False)  # a run folder that is removed while it is trained is not made again
    for left in folder.glob(".step-*.tmp"):  # by a process that was killed while it wrote
        _remove(left)
    try:
        write(path_of(folder, step), payload)
    except UserError as error:
        kept = next((s for s in steps(folder) if s != step), None)
        said = f"the checkpoint of step {kept} is kept" if kept is not None else "no checkpoint was made yet"
        raise UserError(f"{error}; {said}") from None
    for old in [s for s in steps(folder) if s < step][keep - 1 :]:
        _remove(path_of(folder, old), digest_of(path_of(folder, old)))
    for digest in folder.glob("step-*.pt.sha256"):  # left behind by a crash between a checkpoint and its digest
        if not digest.with_suffix("").exists():
            _remove(digest)


def set_aside(folder: Path, after: int) -> None:
    """Rename the damaged checkpoints newer than step `after`, so that they neither win nor count again."""
    for step in steps(folder):
        if step > after:
            path = path_of(folder, step)
            path.rename(path.with_name(path.name + ".damaged"))


def _remove(*paths: Path) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # the next save tries again
            print(f"warning: {path} cannot be removed ({error.strerror})", file=sys.stderr)


def newest(folder: Path, check: Check | None = None) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that is undamaged, or None where there is none; and what was passed over, in words.

    `check` may refuse a payload with a UserError; then it is passed over like any other damage. Where no digest fits,
    a checkpoint whose own checksums match is used: its digest file is what was damaged, and is written anew."""
    passed_over: list[str] = []
    for step in steps(folder):
        try:
            return read(path_of(folder, step), check), passed_over
        except (UserError, OSError) as error:
            passed_over.append(str(error))
    for step in steps(folder):
        try:
            return rescued(path_of(folder, step), check), passed_over[: steps(folder).index(step)]
        except (UserError, OSError):
            continue
    if passed_over:
        raise UserError(f"no undamaged checkpoint is left in {folder}: {passed_over[0]}; or train into another --out")
    return None, passed_over


def rescued(path: Path, check: Check | None = None) -> dict[str, Any]:
    """A checkpoint by the CRC-32 that its archive has of every record, in place of a digest that is lost or damaged."""
    content = path.read_bytes()
    failing = damaged(f"checkpoint {path}", "is damaged", "copy it again")
    with failing, zipfile.ZipFile(io.BytesIO(content)) as archive:
        broken = archive.testzip()
    if broken is not None:
        raise UserError(f"checkpoint {path} is damaged in its record {broken}; copy it again")
    payload = payload_of(path, content, check)
    print(
        f"warning: {digest_of(path)} is missing or damaged, but the checkpoint's own checksums are right; it is used",
        file=sys.stderr,
    )
    try:
        write_atomic(digest_of(path), hashlib.sha256(content).hexdigest().encode())
    except UserError as error:  # a folder that may only be read is good enough to read from
        print(f"warning: {error}", file=sys.stderr)
    return payload


def check_payload(payload: dict[str, Any]) -> None:
    """Raise a `UserError` if a checkpoint does not hold what a run needs to go on."""
    try:
        if not isinstance(payload["step"], int) or not isinstance(payload["best"], dict):
            raise TypeError("its step or its best model has another type")
        from_tree(payload["state"], torch.device("meta"))
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it does not hold a run's state ({error!r})") from None
