"""Several runs as one: the pure training step, vmapped over seeds and learning rates.

Replica r of a run with R seeds and learning rates l_0, l_1, ... has seed + r % R and rate l_{r // R}. Each equals the
single run with that seed and rate, up to the rounding of batched matrix products.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.optim.options import Optimisation

T = TypeVar("T")


def seeds(optimisation: Optimisation) -> Tensor:
    """Seeds as an int64 tensor, [] for a single run and [replicas] otherwise."""
    if not optimisation.replicated:
        return torch.tensor(optimisation.seed)
    return optimisation.seed + torch.arange(optimisation.replicas).repeat(len(optimisation.lr))


def names(optimisation: Optimisation) -> list[str]:
    """A label per replica, in their order."""
    suffixes = [f" lr={rate:g}" if len(optimisation.lr) > 1 else "" for rate in optimisation.lr]
    return [f"seed={optimisation.seed + r}{suffix}" for suffix in suffixes for r in range(optimisation.replicas)]


def rate_labels(optimisation: Optimisation) -> list[str]:
    """What of its label a replica shares with the other seeds at its learning rate; "" where there is one rate."""
    return [name.partition(" ")[2] for name in names(optimisation)]


def by_rate(values: Sequence[T], labels: Sequence[str]) -> dict[str, list[T]]:
    """Values of replicas, those at one learning rate together: models at different rates are never averaged."""
    found: dict[str, list[T]] = {}
    for value, label in zip(values, labels, strict=False):  # some values are of the first replica only
        found.setdefault(label, []).append(value)
    return found


def labelled(name: str, label: str) -> str:
    return f"{name} {label}" if label else name


def stack(trees: Sequence[Any]) -> Any:
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def pick(tree: Any, replica: int) -> Any:
    return tree_map(lambda leaf: leaf[replica], tree)
