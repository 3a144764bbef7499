"""Errors that are not programming errors, with their exit codes; names and reasons in a form fit for messages."""

import os


class UserError(Exception):
    """A mistake in the user's input. The text says what was got, what was expected and what to do. Exit code 2."""

    exit_code = 2


class WithoutGraphsError(UserError):
    """A failed capture that ends its processes. New ones can go on without graphs: `eblvm train` starts them."""

    def __init__(self, why: str):
        super().__init__(f"{why}, and this process cannot go on; use graphs=False (--no-graphs)")
        self.why = why


class DivergedError(Exception):
    """A non-finite or exploding value in training. The text names the quantity and what to try. Exit code 3."""

    exit_code = 3


class LostPeerError(Exception):
    """The loss of another process of the run. Each remaining process reports it. Exit code 4."""

    exit_code = 4


def unknown(kind: str, got: str, valid: list[str]) -> UserError:
    from difflib import get_close_matches

    near = get_close_matches(got, valid, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return UserError(f"unknown {kind} {got!r}; {hint}valid: {', '.join(valid)}")


def reason(error: BaseException) -> str:
    """Return the error's first line, short and printable; its type if it has no text."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = str(error).strip().partition("\n")[0][:160]
    words = {MemoryError: "it claims more than the memory holds", RecursionError: "it is nested too deeply"}
    fixed = next((text for kind, text in words.items() if isinstance(error, kind)), None)
    return printable(fixed or first or type(error).__name__)


def printable(name: object) -> str:
    """Return a name for messages: one line, with bytes that are not UTF-8 and control characters escaped."""
    try:
        text = os.fsencode(str(name)).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # surrogates that encode no byte
        text = str(name).encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
