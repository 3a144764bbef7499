"""Values in trees of options: set by name, checked, saved and compared."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from eblvm.engine.errors import UserError, unknown
from eblvm.engine.options import Leaf, Options, T, can, kinds_of, nodes, value_type

LARGEST, SMALLEST = 1e18, 1e-18  # of numbers; fp32 ends at 3e38, and steps square what they are given
LARGEST_COUNT = 1_000_000  # of integers that state no limit of their own
RANGE = {"low": operator.ge, "above": operator.gt, "high": operator.le, "below": operator.lt}


def with_value(node: T, path: tuple[str, ...], value: Any) -> T:
    name, *rest = path
    return replace(node, **{name: with_value(getattr(node, name), tuple(rest), value) if rest else value})


def with_values(root: T, changes: Mapping[str, Any], presets: Mapping[str, Any]) -> T:
    """The tree with the options and slots of `changes` set by name, from the root down; an unknown name raises.

    A new kind in a slot takes what it declares from `presets` and `changes`; a kind that does not fit the rest of the
    tree gives way to the first that does, unless it was asked for."""
    known = {**presets, **changes}
    for _ in range(8):  # a slot's new kind may bring further slots
        before = root
        for leaf in root.leaves():
            if not leaf.is_slot:
                continue
            kinds, asked = kinds_of(root, leaf), known.get(leaf.name)
            wanted = asked.kind if isinstance(asked, Options) else asked
            if leaf.name in changes and wanted not in kinds:
                raise _no_such_kind(root, leaf, wanted, kinds)
            chosen = wanted if leaf.name in changes else leaf.value
            if chosen not in kinds:
                chosen = wanted if wanted in kinds else next(iter(kinds), leaf.value)
            if chosen != leaf.value:
                root = with_value(root, leaf.path, _filled(kinds[chosen], known))
                break
        if root is before:
            break
    found = {leaf.name: leaf for leaf in root.leaves()}
    for name, value in changes.items():
        if name not in found:
            raise UnreadOptionError(name, root)
        leaf = found[name]
        if isinstance(value, Options):
            root = with_value(root, leaf.path, value)
        elif not leaf.is_slot:
            root = with_value(root, leaf.path, checked(leaf, value))
    return root


def with_presets(root: T, presets: Mapping[str, Any]) -> T:
    """The tree with those of `presets` that it reads and can take; further slots may come with a slot's kind."""
    root = with_values(root, {}, presets)
    for _ in range(3):
        wanted = {}
        for leaf in root.leaves():
            possible = kinds_of(root, leaf) if leaf.is_slot else leaf.choices
            if leaf.name in presets and (not possible or presets[leaf.name] in possible):
                wanted[leaf.name] = presets[leaf.name]
        root = with_values(root, wanted, presets)
    return root


def _filled(node: Options, known: Mapping[str, Any]) -> Options:
    for leaf in node.leaves():
        if leaf.name not in known:
            continue
        value = known[leaf.name]
        if leaf.is_slot:
            kinds = leaf.field.metadata["kinds"]
            if value in kinds and value != leaf.value:
                node = with_value(node, leaf.path, _filled(kinds[value], known))
        elif not (choices := leaf.field.metadata["choices"]) or value in choices:
            node = with_value(node, leaf.path, checked(leaf, value))
    return node


class UnreadOptionError(Exception):
    """A name that no node of the tree `root` has. Whoever knows all methods can say who reads it."""

    def __init__(self, name: str, root: Any):
        super().__init__(name)
        self.name, self.root = name, root


def _no_such_kind(root: Options, leaf: Leaf, got: Any, kinds: Mapping[str, Options]) -> UserError:
    name, every = leaf.name.replace("_", "-"), leaf.field.metadata["kinds"]
    if got not in every:
        return unknown(name, str(got), list(every))
    need = next(need for need in every[got].needs if not can(root, need))
    node = next(node for node in nodes(root) if not getattr(node, need, True))
    use = "".join(f"{kind!r} or " for kind in kinds) + f"another --{node.group}"
    return UserError(
        f"{name} {got!r} needs {need.replace('_', ' ')}, which {node.group} {node.kind!r} does not have; use {use}"
    )


def checked(leaf: Leaf, value: Any) -> Any:
    """The value as the option holds it, or an error that says what was expected."""
    kind, many, optional = value_type(type(leaf.owner), leaf.name)
    if value is None and optional:
        return None
    name = leaf.name.replace("_", "-")
    values = list(value) if many and isinstance(value, (tuple, list)) else [value]
    values = [x.item() if hasattr(x, "item") and getattr(x, "ndim", None) == 0 else x for x in values]
    if not all(_is_a(x, kind) for x in values):
        raise UserError(f"got {name}={value!r}, expected {'several of ' if many else ''}{kind.__name__}")
    if kind is float:
        values = [float(x) for x in values]
        if not all(math.isfinite(x) for x in values):
            raise UserError(f"got {name}={value}, expected a finite number")
    facts = leaf.field.metadata
    if not all(_can_be_computed_with(x, facts) for x in values):
        size = f"0 or a size between {SMALLEST:g} and {LARGEST:g}, which fp32 can compute with"
        computable = f"a whole number of at most {LARGEST_COUNT:,}" if kind is int else size
        raise UserError(f"got {name}={value}, expected {computable}")
    if facts["choices"] and not all(x in facts["choices"] for x in values):
        if kind is str:
            raise unknown(name, str(value), list(facts["choices"]))
        raise UserError(f"got {name}={value}, expected one of {', '.join(map(str, facts['choices']))}")
    if not all(facts[end] is None or holds(x, facts[end]) for end, holds in RANGE.items() for x in values):
        raise UserError(f"got {name}={value}, expected {range_text(facts)}")
    return tuple(values) if many else values[0]


def _is_a(value: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _can_be_computed_with(x: Any, facts: Mapping[str, Any]) -> bool:
    """Not beyond what fp32 can hold and square, nor a count that nothing could be allocated for."""
    if isinstance(x, bool) or not isinstance(x, (int, float)) or x == 0:
        return True
    if isinstance(x, int):
        return abs(x) <= LARGEST_COUNT or facts["high"] is not None
    return SMALLEST <= abs(x) <= LARGEST


def range_text(facts: Mapping[str, Any]) -> str:
    """The range of an option in words; empty where there is none."""
    low, above, high, below = (facts[k] for k in ("low", "above", "high", "below"))
    end = f" to {number(high)}" if high is not None else f" to below {below:g}" if below is not None else ""
    if low is not None:
        return f"{low:g}{end}" if end else f"{low:g} or more"
    if above is not None:
        if not end:
            return "a positive number" if above == 0 else f"more than {above:g}"
        if high is None:
            return f"above {above:g}, below {below:g}"
        return f"a number above {above:g}, at most {number(high)}"
    return f"at most {number(high)}" if high is not None else f"below {below:g}" if below is not None else ""


def number(value: float) -> str:
    """2,147,483,647, not 2.14748e+09, of which nobody knows the last digits."""
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else f"{value:g}"


def to_json(node: Options) -> dict[str, Any]:
    """The tree as plain containers; a node in a slot says its kind."""
    values: dict[str, Any] = {}
    for f in fields(node):
        value = getattr(node, f.name)
        if isinstance(value, Options):
            values[f.name] = {"kind": value.kind, **to_json(value)} if "kinds" in f.metadata else to_json(value)
        elif "help" in f.metadata:
            values[f.name] = list(value) if isinstance(value, tuple) else value
    return values


def from_json(node: T, values: Any, where: str = "") -> T:
    """The tree `node` with the values that `to_json` gave; a name or value that it cannot have is an error."""
    if not isinstance(values, dict):
        raise UserError(f"config{where}: got {values!r}, expected a table of options")
    known = {f.name: f for f in fields(node) if "help" in f.metadata or isinstance(getattr(node, f.name), Options)}
    for name, value in values.items():
        if name == "kind":
            continue
        if name not in known:
            valid = ", ".join(known)
            raise UserError(f"config{where} has an option {name!r} that this version does not know; valid: {valid}")
        f, inner, default = known[name], f"{where}.{name}", getattr(node, name)
        if "kinds" in f.metadata:
            kinds, kind = f.metadata["kinds"], value.get("kind") if isinstance(value, dict) else value
            if not isinstance(kind, str) or kind not in kinds:
                error = unknown(f"{name} in config{where}", str(kind), list(kinds))
                raise UserError(f"{error}; if it is of your own, import its file first: --with FILE.py")
            new: Any = from_json(kinds[kind], value if isinstance(value, dict) else {}, inner)
        elif isinstance(default, Options):
            new = from_json(default, value, inner)
        else:
            new = checked(Leaf(node, (name,), f, None), value)
        node = replace(node, **{name: new})
    return node


def differences(old: Options, new: Options) -> list[str]:
    """The mathematical options in which two trees differ, as 'name old -> new'."""
    before, after = ({leaf.name: leaf for leaf in root.leaves()} for root in (old, new))
    found = []
    for name in dict.fromkeys((*before, *after)):
        values = [side[name].value if name in side else None for side in (before, after)]
        facts = (after.get(name) or before[name]).field.metadata
        if values[0] != values[1] and facts.get("mathematical", True):
            found.append(f"{name} {values[0]!r} -> {values[1]!r}")
    return found
