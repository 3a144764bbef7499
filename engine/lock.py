"""A lock on a file, between processes. A file system without locks is not taken for another process."""

import errno
import os
import sys
from pathlib import Path
from typing import IO

from eblvm.engine.durable import failed
from eblvm.engine.system import NO_LINKS, flock

HELD = (errno.EAGAIN, errno.EACCES)
UNSUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL)


def take(path: Path, wait: bool) -> IO[bytes]:
    """The lock file, locked until it is closed. Where another process has it: wait, or raise `BlockingIOError`.

    Where the file system cannot lock, a warning says so and the file is given unlocked. The file's content is not
    touched, and a link in its place is not followed.
    """
    try:
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | NO_LINKS, 0o666), "r+b", buffering=0)
    except OSError as error:
        raise failed(path, error) from None
    try:
        flock(file.fileno(), exclusive=True, wait=wait)
    except OSError as error:
        if error.errno in UNSUPPORTED:
            print(
                f"warning: {path.parent} cannot be locked ({error.strerror}); let only one process write there",
                file=sys.stderr,
            )
            return file
        file.close()
        if error.errno in HELD:
            raise BlockingIOError(error.errno, "another process holds the lock", str(path)) from None
        raise failed(path, error) from None
    return file


def held(path: Path) -> bool:
    """Does a process hold this lock? It is asked for a moment and given back at once; nothing is made or changed."""
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
