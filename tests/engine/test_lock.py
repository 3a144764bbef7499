"""The lock on a folder: held once, not through links, and no other process where there are no locks."""

import errno
import fcntl
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eblvm.engine.durable import take_lock
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("kept")
    with take_lock(path, wait=False), pytest.raises(BlockingIOError):
        take_lock(path, wait=False)
    take_lock(path, wait=False).close()
    assert path.read_text() == "kept"


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_no_other_process(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    take_lock(tmp_path / ".lock", wait=False).close()
    assert "cannot be locked (no locks here); let only one process write there" in capsys.readouterr().err
    folder = tmp_path / "faces"
    folder.mkdir()
    for i in range(20):
        Image.fromarray(np.full((20, 20, 3), i, np.uint8)).save(folder / f"{i}.png")
    config = recipe("celeba32").replaced(data=str(folder), cache=str(tmp_path / "cache"))
    assert len(config.load_data().train) == 18


def test_other_errors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"nowhere/.lock cannot be written .* make its folder, or give a path"):
        take_lock(tmp_path / "nowhere" / ".lock", wait=True)
    (tmp_path / ".lock").symlink_to(tmp_path / "made.txt")
    with pytest.raises(UserError, match="it is a link, which is not followed"):
        take_lock(tmp_path / ".lock", wait=True)
    assert not (tmp_path / "made.txt").exists()
