"""Files that survive a crash: written completely or not at all, and never through a link to somewhere else; and the
lock that lets one process write to a folder."""

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from eblvm.engine.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Flags for os.open: follow no link, do not pass to child processes, do not translate bytes.
NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
FOLDER: int | None = getattr(os, "O_DIRECTORY", None)  # None: folders cannot be opened, so they cannot be synchronised
OTHER = "give a path that can be read and written"
# Error numbers of a lock that another process has, and of a file system without locks.
HELD = (errno.EAGAIN, errno.EACCES)
UNSUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content`, completely or not at all, even if the power fails.

    The temporary file next to it is always a new one, so that neither a link at its path nor one at `path` is followed.
    The folder is synchronised after the rename, else a power cut could bring the old file back."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINKS, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # half a file would only use the space that is missing
            temporary.unlink(missing_ok=True)
        raise failed(path, error, "the file that was there before is kept" if path.exists() else "") from None


def sync_folder(folder: Path) -> None:
    """Make renames and new files in `folder` permanent, if its file system can."""
    if FOLDER is None:
        return
    handle = os.open(folder, os.O_RDONLY | FOLDER | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.ENOSYS):
            raise
    finally:
        os.close(handle)


def open_to_append(path: Path) -> IO[str]:
    """Open a text file for appending, created if it is missing; a link at its path is an error."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINKS, 0o666)
    except OSError as error:
        raise failed(path, error) from None
    return os.fdopen(handle, "a", encoding="utf-8", newline="\n")


def open_to_update(path: Path) -> IO[bytes]:
    """Open a file for reading and writing from its start, created if it is missing; a link at its path is an error."""
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666), "r+b")
    except OSError as error:
        raise failed(path, error) from None


def make_folder(folder: Path, parents: bool = True) -> None:
    """Create `folder`, with the ones above it if `parents`; a link at its path is an error: it may lead anywhere."""
    if folder.is_symlink():
        raise UserError(f"{folder} is a link, expected a folder; nothing was written: replace it by a folder")
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise failed(folder, error) from None


def failed(path: Path, error: OSError, kept: str = "") -> UserError:
    """Return the error for a file that cannot be written: which, why, what is kept and what to do."""
    what = {
        errno.ENOSPC: "free some space on that disk and give the same command again",
        errno.EDQUOT: "free some of your quota and give the same command again",
        errno.EIO: "the disk fails: copy what you need, and use another",
        errno.ENOENT: f"make its folder, or {OTHER}",
        errno.ELOOP: "it is a link, which is not followed: remove it",
    }.get(error.errno or 0, OTHER)
    return UserError(f"{path} cannot be written ({error.strerror or error}); {kept + '; ' if kept else ''}{what}")


def take_lock(path: Path, wait: bool) -> IO[bytes]:
    """Return the lock file, locked until it is closed. If another process has it: wait, or raise `BlockingIOError`.

    If the file system cannot lock, a warning says so and the file is returned unlocked. Its content is not touched."""
    file = open_to_update(path)
    try:
        flock(file.fileno(), exclusive=True, wait=wait)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            why = f"{path.parent} cannot be locked ({error.strerror})"
            print(f"warning: {why}; let only one process write there", file=sys.stderr)
            return file
        file.close()
        if error.errno in HELD:
            raise BlockingIOError(error.errno, "another process has the lock", str(path)) from None
        raise failed(path, error) from None
    return file


def flock(file: int, *, exclusive: bool, wait: bool) -> None:
    """Lock an open file, or raise OSError: EAGAIN if another process has it, ENOSYS if the system has no such locks."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this system has no file locks")
    fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))


def is_locked(path: Path) -> bool:
    """Return whether a process has this lock: it is acquired and released at once; nothing is created or changed."""
    try:
        file = os.open(path, os.O_RDONLY | NO_LINKS)
    except OSError:
        return False
    try:
        flock(file, exclusive=False, wait=False)
        return False
    except OSError as error:
        return error.errno in HELD
    finally:
        os.close(file)
