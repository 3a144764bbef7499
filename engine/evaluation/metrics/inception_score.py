"""The Inception Score (Salimans et al. 2016): exp E_x KL(p(y|x) || p(y)), from a classifier's logits."""

from typing import NamedTuple

import torch
from torch import Tensor

SPLITS = 10  # as published


class InceptionScore(NamedTuple):
    mean: float
    deviation: float  # over the splits


def inception_score(logits: Tensor, splits: int = SPLITS) -> InceptionScore:
    """Mean and deviation over `splits` equal parts of logits [n, classes], each against its own p(y)."""
    scores = []
    for part in logits.double().tensor_split(min(splits, len(logits))):
        log_p = part.log_softmax(1)
        log_marginal = log_p.logsumexp(0) - torch.tensor(len(part), dtype=torch.float64).log()
        scores.append((log_p.exp() * (log_p - log_marginal)).sum(1).mean().exp())
    values = torch.stack(scores)
    return InceptionScore(float(values.mean()), float(values.std(correction=0)))
