"""Bytes as the mebibytes of records and tables."""

MIB, GIB = 2**20, 2**30


def mib(nbytes: float | None) -> float | None:
    """MiB of so many bytes; None is a figure that cannot be measured."""
    return None if nbytes is None else nbytes / MIB
