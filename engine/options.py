"""Options, and trees of them: what can be set, to which values, what for, and who reads it.

A node is a class derived from `Options`, which makes it a frozen dataclass. Its fields are options (`option`) or slots
(`slot`) that hold another node, one of several kinds. Names are unique within the tree of a run, so an option has one
flag and one name from the command line to the line that uses it. A node also says what it can do, as class attributes;
an option or a kind that `needs` a capability is there only if no node of the tree lacks it.

`engine/values.py` sets the values. Nothing here or in a file that declares options imports torch: `--help` and error
messages must not wait for it.
"""

from __future__ import annotations

import importlib
import pkgutil
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

from eblvm.engine.errors import UserError

if TYPE_CHECKING:
    from eblvm.engine.config import Config

T = TypeVar("T", bound="Options")


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


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, repr=False, eq=False)
class Options:
    """A node. `kind` is its name in its slot, `group` the title under which the help shows its options.

    A class that derives from it is a frozen dataclass without a decorator. dataclass compiles source text for every
    method that it makes, in every class; what can be inherited is written here once, since `--help` waits for it."""

    kind: ClassVar[str] = ""
    group: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # capabilities without which this kind cannot be chosen
    declared: ClassVar[int] = 0  # classes of nodes so far

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, repr=False, eq=False)(cls)
        Options.declared += 1

    def _compared(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in fields(self) if f.compare)

    def __eq__(self, other: object) -> bool:
        return self._compared() == other._compared() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), self._compared()))

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({shown})"

    def check(self, config: Config) -> None:
        """Raise a `UserError` if this node does not fit the rest of the run; without data and without torch."""

    def waits(self, config: Config) -> str | None:
        """Say where in its part of a training step the host waits for the device, or reads a value of it, so that the
        step cannot be a CUDA graph; None: nowhere."""
        return None

    def leaves(self) -> list[Leaf]:
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


NONE = "none"  # the text that unsets an option


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
    annotation: Any = owner.__dataclass_fields__[name].type
    try:
        return _value_type(annotation)
    except NameError:  # a name of the file that declares it
        return _value_type(typing.get_type_hints(owner)[name])


@cache
def _value_type(annotation: Any) -> tuple[Any, bool, bool]:
    """Read an annotation once for all options that have it: the few of builtin names need no search for names."""
    kind = eval(annotation, {}) if isinstance(annotation, str) else annotation
    optional = type(None) in typing.get_args(kind)
    if optional:
        (kind,) = (a for a in typing.get_args(kind) if a is not type(None))
    if typing.get_origin(kind) is tuple:
        return typing.get_args(kind)[0], True, optional
    return kind, False, optional


def nodes(root: Options) -> Iterator[Options]:
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


class Kinds(Mapping[str, T]):
    """The kinds of a slot by name, those that users declare in files of their own included."""

    def __init__(self, find: Callable[[], Iterable[T]]):
        self._find, self._declared, self._known = find, -1, dict[str, T]()

    @property
    def _nodes(self) -> dict[str, T]:
        if self._declared != Options.declared:
            known: dict[str, T] = {}
            for node in self._find():
                if node.kind in known:
                    raise UserError(
                        f"{type(node).__module__}.{type(node).__name__} has the kind {node.kind!r}, which "
                        f"{type(known[node.kind]).__module__} has already; give it another kind"
                    )
                known[node.kind] = node
            self._known, self._declared = known, Options.declared
        return self._known

    def __getitem__(self, kind: str) -> T:
        return self._nodes[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


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
