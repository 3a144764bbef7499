"""The ways a run ends that are not a programming error, and the exit codes the command line gives them."""

from difflib import get_close_matches


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
    near = get_close_matches(got, valid, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
    return UserError(f"unknown {kind} {got!r}; {hint}valid: {', '.join(valid)}")
