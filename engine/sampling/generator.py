"""Samples of a generator v = G(h): one pass, no chain."""

from typing import Any

import torch
from torch import Tensor

from eblvm.engine.errors import UserError, unknown
from eblvm.engine.runs.run import SavedRun
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

KINDS = ("marginal", "given-h", "interpolation")
FRAMES = 10  # pictures along an interpolation
CHUNK = 500  # images per pass


@torch.no_grad()
def generate(run: SavedRun, model: str, count: int, seed: int, kind: str | None = None, first: int = 0) -> Tensor:
    """Images [n, C, S, S] in [0, 1]: numbers first, first + 1, ... of the seed's.

    marginal: G(h), h ~ N(0, I). given-h: G(h), h the posterior means of training data. interpolation: `count` rows of
    FRAMES images, h on the line between the posterior means of two training samples.
    """
    kind = kind or "marginal"
    if kind not in KINDS:
        raise unknown("kind", kind, list(KINDS))
    method, nets, state = run.config.method, run.nets, run.state(model)
    if kind == "marginal":
        kwargs: dict[str, Any] = {
            "dtype": getattr(torch, run.config.running.dtype),
            "device": torch.device(run.config.running.device),
        }
        h = philox.normal(
            Key(seed, 0), purpose(Purpose.SAMPLE_H), count, (run.config.model.latent,), first=first, **kwargs
        )
    else:
        each = 2 if kind == "interpolation" else 1
        skipped, ends = each * first, each * count
        order = philox.permutation(Key(seed, 0), purpose(Purpose.EVAL), len(run.dataset.train))
        if skipped + ends > len(order):
            raise UserError(f"got a count of {count}, which needs {ends} of the {len(order)} training samples")
        v = run.dataset.floats(run.dataset.train[order[skipped : skipped + ends].to(run.config.running.device)])
        h = method.encode(nets, state, v)
    if kind == "interpolation":
        fraction = torch.linspace(0, 1, FRAMES, dtype=h.dtype, device=h.device).view(1, FRAMES, 1)
        h = torch.lerp(h[0::2, None], h[1::2, None], fraction).flatten(0, 1)
    return torch.cat([method.decode(nets, state, chunk) for chunk in h.split(CHUNK)])
