"""Several runs as one: the pure training step, vmapped over seeds and learning rates.

Replica r of a run with R seeds and learning rates l_0, l_1, ... has seed + r % R and rate l_{r // R}. Each equals the
single run with that seed and rate, up to the rounding of batched matrix products.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.config import Config


def seeds(config: Config) -> Tensor:
    """Seeds as an int64 tensor, [] for a single run and [replicas] otherwise."""
    if not config.replicated:
        return torch.tensor(config.seed)
    return config.seed + torch.arange(config.replicas).repeat(len(config.lr))


def learning_rates(config: Config, dtype: torch.dtype) -> Tensor:
    """Learning rates of theta, shaped as `seeds`."""
    rates = torch.tensor(config.lr, dtype=dtype)
    return rates.repeat_interleave(config.replicas) if config.replicated else rates[0]


def names(config: Config) -> list[str]:
    """A label a replica, in their order."""
    suffixes = [f" lr={rate:g}" if len(config.lr) > 1 else "" for rate in config.lr]
    return [f"seed={config.seed + r}{suffix}" for suffix in suffixes for r in range(config.replicas)]


def stack(trees: Sequence[Any]) -> Any:
    return tree_map(lambda *leaves: torch.stack(leaves), *trees)


def pick(tree: Any, replica: int) -> Any:
    return tree_map(lambda leaf: leaf[replica], tree)
