"""Trees and values of several runs that are trained as one."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

T = TypeVar("T")


def stack(trees: Sequence[Any]) -> Any:
    """Return one tree whose leaves have a leading replica axis."""
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def pick(tree: Any, replica: int) -> Any:
    """Return one replica of a tree."""
    return tree_map(lambda leaf: leaf[replica], tree)


def by_rate(values: Sequence[T], labels: Sequence[str]) -> dict[str, list[T]]:
    """Return values of replicas, those at one learning rate together: models at different rates are never averaged."""
    groups: dict[str, list[T]] = {}
    for value, label in zip(values, labels, strict=False):  # some values are of the first replica only
        groups.setdefault(label, []).append(value)
    return groups


def labelled(name: str, label: str) -> str:
    return f"{name} {label}" if label else name
