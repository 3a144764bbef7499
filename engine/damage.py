"""Errors of libraries for a bad file, turned into one line that names the file, what is wrong and what to do."""

import lzma
import pickle
import struct
import tarfile
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from eblvm.engine.errors import UserError, printable, reason

TRUNCATED = "it may be truncated: copy it again"

# Errors that the parsers in use raise for content they cannot read. NameError, AssertionError, ImportError and the like
# are not here: no content causes them, so they are bugs and keep their traceback.
DAMAGE = (
    OSError,  # short reads, gzip's and bz2's bad headers, Pillow's unidentified pictures
    EOFError,  # a compressed stream that ends early
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    pickle.UnpicklingError,
    struct.error,  # a header shorter than its format
    tokenize.TokenError,  # numpy and ast on the header of an .npy
    SyntaxError,  # the same, and Pillow on broken PNG chunks
    ValueError,  # any wrong value; Unicode errors are ValueErrors
    ArithmeticError,  # sizes beyond an index; Pillow divides by claimed sizes
    MemoryError,  # a claimed size that cannot be allocated
    RecursionError,  # nesting
    NotImplementedError,  # zip methods, MATLAB 7.3
    RuntimeError,  # encrypted zip members, torch's reader
    # Parsers written in Python raise these for content of a wrong type or length. A block that catches them must
    # contain the library's call alone, so that they cannot come from our own lines.
    LookupError,
    TypeError,
    AttributeError,
)


@contextmanager
def damaged(
    where: object, what: str, advice: str = TRUNCATED, passing: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn a library's error into "`where` `what` (reason); `advice`". Put its call in the block, nothing else.

    Its warnings about the content are dropped: the content is used or refused. Errors of the types `passing` pass."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except passing:
        raise
    except DAMAGE as error:
        raise UserError(f"{printable(where)} {what} ({reason(error)}); {advice}") from None
