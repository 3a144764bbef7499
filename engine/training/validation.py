"""Validation: the method's own loss at fixed noise, and the best model by it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.methods.base import Nets, Rows, State
from eblvm.engine.optim import replicas
from eblvm.engine.training import distributed
from eblvm.kernels.philox import Key

VALIDATION_SEED = 2**40  # validation noise is the same for every run and step


@torch.no_grad()
def validation(config: Config, nets: Nets, state: State, dataset: Dataset) -> list[float]:
    """Return the method's own loss on the validation set, by replica; in chunks where images or pairs fill memory."""
    method, paired = config.method, config.method.pairs_samples
    in_chunks = dataset.valid.dim() > 2 or paired
    size = config.optimisation.batch if in_chunks else len(dataset.valid)
    states = [replicas.pick(state, r) for r in range(config.optimisation.count)] if config.replicated else [state]
    totals = [0.0] * len(states)
    for i, chunk in enumerate(dataset.valid.split(size)):
        here = collectives.local_slice(len(chunk))
        if paired:  # the ranks take turns at whole chunks
            here = slice(0, len(chunk) if i % collectives.size() == collectives.rank() else 0)
        v = dataset.floats(chunk[here])
        if len(v):
            key = Key(VALIDATION_SEED, i)
            noise = method.draw(nets, key, Rows.of(key, v, here.start, len(chunk)))
            with collectives.alone() if paired else nullcontext():
                losses = [float(method.validation(nets, s, v, noise, config.step.micro_batch)) for s in states]
            totals = [t + loss * len(v) for t, loss in zip(totals, losses, strict=True)]
    return [total / len(dataset.valid) for total in distributed.total(totals)]


def better(best: dict[str, Any], step: int, values: list[float], state: State) -> dict[str, Any]:
    """Return the best model by validation loss: value, step, theta, phi, ema and buffers, an entry per replica."""
    models = {
        "theta": state.theta.params,
        "phi": state.phi.params,
        "ema": state.theta.average,
        "buffers": state.buffers,
    }
    if not best:
        copied = {part: {k: p.clone() for k, p in models[part].items()} for part in models}
        return {"value": values, "step": [step] * len(values), **copied}
    improved = [new < old for new, old in zip(values, best["value"], strict=True)]
    choose = torch.tensor(improved if len(improved) > 1 else improved[0])

    def newer(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(choose.view(-1, *[1] * (new.dim() - 1)).to(new.device) if choose.dim() else choose, new, old)

    return {
        "value": [new if i else old for i, new, old in zip(improved, values, best["value"], strict=True)],
        "step": [step if i else old for i, old in zip(improved, best["step"], strict=True)],
        **{part: {k: newer(p, best[part][k].to(p.device)) for k, p in models[part].items()} for part in models},
    }
