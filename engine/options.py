"""Options, and trees of them: what can be set, to which values, what for, and who reads it.

A node is a frozen dataclass derived from `Options`. Its fields are options (`option`) or slots (`slot`) that hold
another node, one of several kinds. Names are unique within the tree of a run, so an option has one flag and one name
from the command line to the line that uses it. A node also says what it can do, as class attributes; an option or a
kind that `needs` a capability is there only if no node of the tree lacks it.

Nothing here or in a file that declares options imports torch: `--help` and error messages must not wait for it.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from eblvm.engine.errors import UserError, unknown

if TYPE_CHECKING:
    from eblvm.engine.config import Config

T = TypeVar("T", bound="Options")


@dataclass(frozen=True)
class Options:
    """A node. `kind` is its name in its slot, `group` the title under which the help shows its options."""

    kind: ClassVar[str] = ""
    group: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # capabilities without which this kind cannot be chosen
    declared: ClassVar[int] = 0  # classes of nodes so far

    def __init_subclass__(cls) -> None:
        Options.declared += 1

    def check(self, config: Config) -> None:
        """Raise a `UserError` if this node does not fit the rest of the run; without data and without torch."""

    def leaves(self) -> list[Leaf]:
        """Return all options that this tree reads, and its slots, in order."""
        capable = cache(partial(can, self))

        def under(node: Options, path: tuple[str, ...]) -> Iterator[Leaf]:
            for f in fields(node):
                value, here = getattr(node, f.name), (*path, f.name)
                if isinstance(value, Options):
                    if "kinds" in f.metadata:
                        yield Leaf(node, here, f, value.kind)
                    yield from under(value, here)
                elif "help" in f.metadata and capable(f.metadata["needs"]):
                    yield Leaf(node, here, f, value)

        return list(under(self, ()))


LARGEST, SMALLEST = 1e18, 1e-18  # of numbers; fp32 ends at 3e38, and steps square what they are given
LARGEST_COUNT = 1_000_000  # of integers that state no limit of their own


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] = (),
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    below: float | None = None,
    mathematical: bool = True,
    needs: str = "",
) -> Any:
    """A field that a user can set. `mathematical` ones decide the numbers of a run: it continues only with the same."""
    facts = {
        "help": help, "choices": choices, "low": low, "above": above, "high": high, "below": below,
        "mathematical": mathematical, "needs": needs,
    }  # fmt: skip
    return field(default=default, metadata=facts)


def slot(kinds: Mapping[str, Any], help: str, default: Any = None) -> Any:
    """A field that holds one of several `kinds` of node, by name; the first one where no default is given."""
    return field(default=default, metadata={"kinds": kinds, "help": help})


NONE = "none"  # the text that unsets an option


class Leaf(NamedTuple):
    """An option of a tree, or the choice of a slot's kind: `value` is then that kind's name."""

    owner: Options
    path: tuple[str, ...]  # of field names, from the root to this one
    field: Field[Any]
    value: Any

    @property
    def name(self) -> str:
        return self.path[-1]

    @property
    def is_slot(self) -> bool:
        return "kinds" in self.field.metadata

    @property
    def choices(self) -> tuple[Any, ...]:
        return () if self.is_slot else self.field.metadata["choices"]

    @property
    def type(self) -> Any:
        """The type of one value: of `int | None` int, of a tuple the tuple type."""
        return str if self.is_slot else value_type(type(self.owner), self.name)[0]

    def parsed(self, text: str) -> Any:
        """The text of a flag as a value of this option."""
        kind, many, optional = value_type(type(self.owner), self.name)
        if optional and text == NONE:
            return None
        try:
            return tuple(kind(x) for x in text.split(",")) if many else kind(text)
        except ValueError:
            words = {int: "an integer", float: "a number"}
            raise UserError(f"got {flag(self.name)} {text}, expected {words.get(kind, kind.__name__)}") from None


def value_type(owner: type[Options], name: str) -> tuple[Any, bool, bool]:
    """(type of a value, is it a tuple of them, may it be None) by the field's annotation."""
    kind = _hints(cast(Any, owner))[name]
    optional = type(None) in typing.get_args(kind)
    if optional:
        (kind,) = (a for a in typing.get_args(kind) if a is not type(None))
    if typing.get_origin(kind) is tuple:
        return typing.get_args(kind)[0], True, optional
    return kind, False, optional


@cache
def _hints(owner: Any) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def nodes(root: Options) -> Iterator[Options]:
    """The node and all below it."""
    yield root
    for f in fields(root):
        value = getattr(root, f.name)
        if isinstance(value, Options):
            yield from nodes(value)


def can(root: Options, capability: str) -> bool:
    """Does every node that declares this capability have it?"""
    return not capability or all(getattr(node, capability, True) for node in nodes(root))


def every_option(node: Options) -> Iterator[tuple[Options, Field[Any]]]:
    """Yield every option that a tree can have under a node, of every kind that its slots accept, with its owner."""
    for f in fields(node):
        if "kinds" in f.metadata:
            yield node, f
            for kind in f.metadata["kinds"].values():
                yield from every_option(kind)
        elif isinstance(value := getattr(node, f.name), Options):
            yield from every_option(value)
        elif "help" in f.metadata:
            yield node, f


def kinds_of(root: Options, leaf: Leaf) -> dict[str, Options]:
    """The kinds that a slot can hold beside the rest of this tree."""
    return {k: n for k, n in leaf.field.metadata["kinds"].items() if all(can(root, need) for need in n.needs)}


def with_value(node: T, path: tuple[str, ...], value: Any) -> T:
    """The tree with the field at `path` replaced."""
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
    """A kind's default node with what `known` says of its options and slots."""
    for leaf in node.leaves():
        if leaf.name not in known:
            continue
        value = known[leaf.name]
        if leaf.is_slot:
            kinds = leaf.field.metadata["kinds"]
            if value in kinds and value != leaf.value:
                node = with_value(node, leaf.path, _filled(kinds[value], known))
        elif not leaf.choices or value in leaf.choices:
            node = with_value(node, leaf.path, checked(leaf, value))
    return node


class UnreadOptionError(Exception):
    """A name that no node of the tree `root` has. Whoever knows all methods can say who reads it."""

    def __init__(self, name: str, root: Any):
        super().__init__(name)
        self.name, self.root = name, root


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
    values = [value] if not many else list(value) if isinstance(value, (tuple, list)) else None
    if values is None or not all(_is_a(x, kind) for x in values):
        expected = f"{'several of ' if many else ''}{kind.__name__}"
        raise UserError(f"got {name}={value!r}, expected {expected}")
    if kind is float:
        values = [float(x) for x in values]
        if not all(math.isfinite(x) for x in values):
            raise UserError(f"got {name}={value}, expected a finite number")
    facts = leaf.field.metadata
    if not all(_can_be_computed_with(x, facts) for x in values):
        raise UserError(f"got {name}={value}, expected {_computable(kind)}")
    if facts["choices"] and not all(x in facts["choices"] for x in values):
        if kind is str:
            raise unknown(name, str(value), list(facts["choices"]))
        raise UserError(f"got {name}={value}, expected one of {', '.join(map(str, facts['choices']))}")
    if not all(_in_range(x, facts) for x in values):
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


def _computable(kind: type) -> str:
    if kind is int:
        return f"a whole number of at most {LARGEST_COUNT:,}"
    return f"0 or a size between {SMALLEST:g} and {LARGEST:g}, which fp32 can compute with"


def _in_range(x: Any, facts: Mapping[str, Any]) -> bool:
    return (
        (facts["low"] is None or x >= facts["low"])
        and (facts["above"] is None or x > facts["above"])
        and (facts["high"] is None or x <= facts["high"])
        and (facts["below"] is None or x < facts["below"])
    )


def range_text(facts: Mapping[str, Any]) -> str:
    """The range of an option in words; empty where there is none."""
    low, above, high, below = (facts[k] for k in ("low", "above", "high", "below"))
    end = f" to {number(high)}" if high is not None else f" to below {below:g}" if below is not None else ""
    if low is not None:
        return f"{low:g}{end}" if end else f"{low:g} or more"
    if above is not None:
        if not end:
            return "a positive number" if above == 0 else f"more than {above:g}"
        return (
            f"a number above {above:g}, at most {number(high)}"
            if high is not None
            else f"above {above:g}, below {below:g}"
        )
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
    known = {f.name: f for f in fields(node) if "help" in f.metadata or is_dataclass(getattr(node, f.name))}
    for name, value in values.items():
        if name == "kind":
            continue
        if name not in known:
            raise UserError(f"config{where} has an option {name!r} that this version does not know; valid: "
                            f"{', '.join(known)}")  # fmt: skip
        f, inner = known[name], f"{where}.{name}"
        if "kinds" in f.metadata:
            kinds, kind = f.metadata["kinds"], value.get("kind") if isinstance(value, dict) else value
            if not isinstance(kind, str) or kind not in kinds:
                error = unknown(f"{name} in config{where}", str(kind), list(kinds))
                raise UserError(f"{error}; if it is of your own, import its file first: --with FILE.py")
            node = replace(node, **{name: from_json(kinds[kind], value if isinstance(value, dict) else {}, inner)})
        elif is_dataclass(getattr(node, name)):
            node = replace(node, **{name: from_json(getattr(node, name), value, inner)})
        else:
            node = replace(node, **{name: checked(Leaf(node, (name,), f, None), value)})
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


class Kinds(Mapping[str, T]):
    """The kinds of a slot by name, those that users declare in files of their own included."""

    def __init__(self, find: Callable[[], Iterable[T]]):
        self._find, self._declared, self._known = find, -1, dict[str, T]()

    @property
    def _nodes(self) -> dict[str, T]:
        if self._declared != Options.declared:
            self._known, self._declared = by_kind(self._find()), Options.declared
        return self._known

    def __getitem__(self, kind: str) -> T:
        return self._nodes[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


def by_kind(nodes: Iterable[T]) -> dict[str, T]:
    """Return nodes by their kind, of which there must be one each."""
    named: dict[str, T] = {}
    for node in nodes:
        if node.kind in named:
            raise UserError(
                f"{type(node).__module__}.{type(node).__name__} has the kind {node.kind!r}, which "
                f"{type(named[node.kind]).__module__} has already; give it another kind"
            )
        named[node.kind] = node
    return named


def declared(base: type[T], first: Iterable[type[T]] = ()) -> Kinds[T]:
    """Return a default node of every class that derives from `base` and declares a kind: `first`, then all others."""
    ordered = dict.fromkeys(first)

    def find() -> Iterator[T]:
        every = (*ordered, *(cls for cls in _subclasses(base) if cls not in ordered))
        return (cls() for cls in every if isinstance(cls.__dict__.get("kind"), str) and cls.kind)

    return Kinds(find)


def _subclasses(base: type[T]) -> Iterator[type[T]]:
    for cls in base.__subclasses__():
        yield cls
        yield from _subclasses(cls)


def discovered(package: str, path: list[str], base: type[T]) -> Kinds[T]:
    """Return the kinds that the modules of a package declare, in alphabetical order of the modules, then all others."""
    classes: list[type[T]] = []
    for module in pkgutil.iter_modules(path):
        members = vars(importlib.import_module(f"{package}.{module.name}")).values()
        classes += [
            m for m in members if isinstance(m, type) and issubclass(m, base) and m.__module__.endswith(module.name)
        ]
    return declared(base, classes)
