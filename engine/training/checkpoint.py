"""Checkpoints: atomic, checksummed, loadable with `weights_only=True`, the newest undamaged one wins.

A checkpoint is `step-XXXXXXXX.pt` beside `step-XXXXXXXX.pt.sha256`. The digest is written first, the file is renamed
into place last, so a checkpoint exists completely or not at all, whenever the process is killed.
"""

import hashlib
import io
import os
import re
from pathlib import Path
from typing import Any

import torch

from eblvm.engine.errors import UserError

VERSION = 1
NAME = re.compile(r"step-(\d{8})\.pt")


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, complete or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write(path: Path, payload: dict[str, Any]) -> None:
    """Save a tree of dicts, lists, tensors, numbers and strings with its digest."""
    buffer = io.BytesIO()
    torch.save({"version": VERSION, **payload}, buffer)
    content = buffer.getvalue()
    write_atomic(path.with_name(path.name + ".sha256"), hashlib.sha256(content).hexdigest().encode())
    write_atomic(path, content)


def read(path: Path) -> dict[str, Any]:
    """Load and verify; a damaged file is an error that names it."""
    digest_path = path.with_name(path.name + ".sha256")
    if not path.is_file() or not digest_path.is_file():
        raise UserError(f"checkpoint {path} or its .sha256 is missing; train the run again or copy both files")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest_path.read_text().strip():
        raise UserError(f"checkpoint {path} is damaged (its SHA-256 does not match {digest_path.name}); copy it again")
    payload = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    if payload.get("version") != VERSION:
        raise UserError(f"checkpoint {path} has format {payload.get('version')}, expected {VERSION}; use that version")
    return payload


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints in a folder, newest first."""
    found = [NAME.fullmatch(p.name) for p in folder.glob("step-*.pt")]
    return sorted((int(m.group(1)) for m in found if m), reverse=True)


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.pt"


def save(folder: Path, step: int, payload: dict[str, Any], keep: int) -> None:
    """Write the checkpoint of `step` and drop older ones, so that `keep` are left."""
    folder.mkdir(parents=True, exist_ok=True)
    write(path_of(folder, step), payload)
    for old in [s for s in steps(folder) if s < step][keep - 1 :]:
        _remove(path_of(folder, old))


def set_aside(folder: Path, after: int) -> None:
    """Rename the damaged checkpoints newer than step `after`, so that they neither win nor count again."""
    for step in steps(folder):
        if step > after:
            path = path_of(folder, step)
            path.rename(path.with_name(path.name + ".damaged"))


def _remove(path: Path) -> None:
    path.unlink()
    path.with_name(path.name + ".sha256").unlink(missing_ok=True)


def newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that is undamaged, or None where there is none; and what was passed over, in words."""
    passed_over: list[str] = []
    for step in steps(folder):
        try:
            return read(path_of(folder, step)), passed_over
        except UserError as error:
            passed_over.append(str(error))
    if passed_over:
        raise UserError(f"no undamaged checkpoint is left in {folder}: {passed_over[0]}; or train into another --out")
    return None, passed_over
