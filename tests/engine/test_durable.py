"""Files that are written whole, and nowhere but where they belong."""

import errno
import os
from pathlib import Path

import pytest

from eblvm.engine.durable import write_atomic
from eblvm.engine.errors import UserError


def test_no_link_is_followed(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("chapter 1")
    for name in ("file", ".file.tmp"):
        (tmp_path / name).symlink_to(target)
    write_atomic(tmp_path / "file", b"content")
    assert target.read_text() == "chapter 1"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"content"


def test_the_folder_is_synchronised_after_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace")}

    def fsync(handle: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "file")
        real["fsync"](handle)

    def replace(*paths: Path) -> None:
        done.append("replace")
        real["replace"](*paths)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    write_atomic(tmp_path / "file", b"content")
    assert done == ["file", "replace", "folder"]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EIO, "the disk fails"),
        (errno.EACCES, "give a path that can be read and written"),
    ],
)
def test_a_failing_disk_is_named_with_what_is_kept(
    code: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=rf"file cannot be written \({os.strerror(code)}\); .* is kept; {advice}"):
        write_atomic(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_has_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone/file cannot be written .* make its folder, or give a path"):
        write_atomic(tmp_path / "gone" / "file", b"content")
