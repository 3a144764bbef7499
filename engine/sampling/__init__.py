"""The samplers, one a file: a new sampler is a new file here with a class derived from `Sampler`.

`sampler_of(run)` is the run's own sampler, `sampler_of(run, "hmc", steps=10)` the one of that name, with options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eblvm.engine.errors import UserError, unknown
from eblvm.engine.options import discovered
from eblvm.engine.sampling.base import Sampler, flag_of
from eblvm.engine.values import checked, with_value

if TYPE_CHECKING:
    from eblvm.engine.runs.saved import SavedRun

KINDS = discovered(__name__, __path__, Sampler)


def sampler_of(run: SavedRun, name: str | None = None, **given: Any) -> Sampler:
    """The sampler `name`, or the run's own, with the options that are given, by their names; None is not given."""
    if name is not None and name not in KINDS:
        raise unknown("sampler", name, list(KINDS))
    if name is None:
        sampler = next(s for s in KINDS.values() if s.automatic and not s.suits(run))
    elif reason := (sampler := KINDS[name]).suits(run):
        raise UserError(reason)
    leaves = {leaf.name: leaf for leaf in sampler.leaves()}
    for option, value in given.items():
        if value is None:
            continue
        if (leaf := leaves.get(option)) is None:
            raise unread(sampler, option)
        sampler = with_value(sampler, leaf.path, checked(leaf, value))
    return sampler


def unread(sampler: Sampler, option: str) -> UserError:
    """The error for an option that this sampler does not read: who does, or the nearest names."""
    readers = [repr(name) for name, other in KINDS.items() if option in {leaf.name for leaf in other.leaves()}]
    if not readers:
        return unknown("option", flag_of(option), [flag_of(leaf.name) for leaf in sampler.leaves()])
    return UserError(
        f"sampler {sampler.kind!r} does not read {flag_of(option)}; it is an option of {' or '.join(readers)}: "
        f"remove {flag_of(option)}, or choose another --sampler"
    )
