"""Out-of-distribution detection: how well log p~(v) tells test samples from samples of something else."""

import torch
from torch import Tensor


def auroc(inside: Tensor, outside: Tensor) -> float:
    """P(inside > outside) + 1/2 P(inside = outside) of scores [m] and [n]: the area under the ROC curve.

    By counting: for each inside score the outside ones below it, and half of those that equal it.
    """
    ordered = outside.double().sort().values
    scores = inside.double().contiguous()
    below = torch.searchsorted(ordered, scores, right=False)
    not_above = torch.searchsorted(ordered, scores, right=True)
    return float((below + not_above).double().mean()) / (2 * len(ordered))
