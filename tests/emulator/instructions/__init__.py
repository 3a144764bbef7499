"""What every instruction does: a table from its first word to a function that decodes it.

A decoder gets the instruction and the machine, and returns a function of the mask of the threads that run it.
"""

from tests.emulator.instructions import (
    accesses,
    arithmetic,
    conversion,
    copies,
    integers,
    matrix,
    tiles,
    warp,
    warpgroup,
)

TABLE = {
    **arithmetic.TABLE,
    **integers.TABLE,
    **conversion.TABLE,
    **accesses.TABLE,
    **copies.TABLE,
    **tiles.TABLE,
    **warp.TABLE,
    **matrix.TABLE,
    **warpgroup.TABLE,
}
