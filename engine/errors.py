"""The ways a run ends that are not a programming error, the exit codes that the command line gives them, and names and
reasons as a message shows them."""

import os


class UserError(Exception):
    """A mistake in what the user gave. Its text says what was got, what was expected and what to do. Exit code 2."""

    exit_code = 2


class DivergedError(Exception):
    """Training produced a non-finite or exploding value. Its text names the quantity and what to try. Exit code 3."""

    exit_code = 3


class LostPeerError(Exception):
    """Another process of the same run is gone, or cannot be reached. Each that is left says so. Exit code 4."""

    exit_code = 4


def unknown(kind: str, got: str, valid: list[str]) -> UserError:
    """An unknown name, answered with the nearest valid ones."""
    from difflib import get_close_matches

    near = get_close_matches(got, valid, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return UserError(f"unknown {kind} {got!r}; {hint}valid: {', '.join(valid)}")


def reason(error: BaseException) -> str:
    """The error's first line, short and printable; its kind where it says nothing."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = str(error).strip().partition("\n")[0][:160]
    words = {MemoryError: "it claims more than the memory holds", RecursionError: "it is nested too deeply"}
    told = next((text for kind, text in words.items() if isinstance(error, kind)), None)
    return printable(told or first or type(error).__name__)


def printable(name: object) -> str:
    """A name for messages: bytes that are not UTF-8 and control characters are escaped, so that it stays one line."""
    try:
        text = os.fsencode(str(name)).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that stand for no byte
        text = str(name).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
