"""`eblvm.train` and `eblvm.load`: the engine from Python; both give a `Run`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.engine import previews, recipes
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.map_style import in_memory
from eblvm.engine.errors import UserError
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.progress import quietly
from eblvm.engine.run import Run
from eblvm.engine.runs.parent import Parent
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training import loop

HUB = "hf://"
LOG = logging.getLogger("eblvm")


def train(
    recipe: str | Config | None = None,
    *,
    out: str | Path | None = None,
    data: Any = None,
    energy: Energy | None = None,
    posterior: Posterior | None = None,
    method: str | None = None,
    model: str | None = None,
    small: bool = False,
    init: str | Path | None = None,
    extend: bool = False,
    progress: bool = True,
    say: Callable[[str], None] = LOG.info,
    **options: Any,
) -> Run:
    """Train a recipe, a configuration, or parts of your own, in the folder `out`, and return the trained model.

    `options` are those of `eblvm train`, with underscores: `train("checkerboard", lr=0.01, steps=5000)`. Without a
    recipe give an `energy`, the `data`, and for a method that learns q(h|v) a `posterior`. `data` is a path, a
    `Dataset`, a tensor, array or list [n, ...], or a map-style set of torch or of Hugging Face, which is read into
    memory; bytes are images. The same call again continues the run in `out`, bitwise; with more `steps` and
    `extend=True` it trains it for longer. `init` is a run, or an exported model, whose weights a new run starts from
    (RUN, RUN@STEP, RUN@best, RUN@ema). `progress=False` shows no bar; messages go to the logger "eblvm", or to
    `say`."""
    dataset = None if data is None or isinstance(data, str | Path) else as_dataset(data)
    if isinstance(recipe, Config):
        config = recipe
    elif recipe is not None:
        config = recipes.recipe(recipe, model, small, method)
    elif energy is None or dataset is None:
        raise UserError("give a recipe, or an `energy` and `data` of your own; see docs/models.md")
    else:
        config = Config.of("custom", method or "bidsm", "custom", "custom", divergence="fisher", log_every=100)
    if isinstance(data, str | Path):
        options["data"] = str(data)
    config = config.replaced(**options)
    folder = Path(out or f"runs/{config.recipe}-{config.method.kind}")
    parent = None if init is None else Parent.parse(str(init))
    custom: dict[str, Any] = {"dataset": dataset, "energy": energy, "posterior": posterior}
    with nullcontext() if progress else quietly():
        loop.train(config, folder, say, init=parent, extend=extend, preview=previews.preview, **custom)
    return load(folder, data=data, device=config.running.device, energy=energy, posterior=posterior)


def load(
    folder: str | Path,
    *,
    model: str | None = None,
    step: int | None = None,
    data: Any = None,
    device: str = "cpu",
    energy: Energy | None = None,
    posterior: Posterior | None = None,
) -> Run:
    """The trained model in a run folder: its best by validation, its `last` or its moving average `ema`.

    `folder` may be one that `eblvm export` wrote, with no run at hand, or `hf://OWNER/NAME[@REVISION]`, such a folder
    as a repository on Hugging Face (pip install 'eblvm[hub]'; what was loaded once needs no network again).
    A run of your own energy and posterior needs them again, and refuses others; `data` says where the data are now."""
    path = str(data) if isinstance(data, str | Path) else None
    dataset = None if data is None or isinstance(data, str | Path) else as_dataset(data)
    return Run(SavedRun.open(local_folder(folder), path, device, step, energy, posterior, dataset), model)


def local_folder(place: str | Path) -> Path:
    if not str(place).startswith(HUB):
        return Path(place)
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{place} needs huggingface_hub; pip install 'eblvm[hub]', or give a local folder") from None
    name, _, revision = str(place).removeprefix(HUB).partition("@")
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision or None))
    except Exception as error:  # its own errors, the network's, and those of a name that does not exist
        reason = str(error).splitlines()[0]
        raise UserError(f"{place} cannot be loaded ({reason}); check the name, or give a local folder") from None


def as_dataset(data: Any) -> Dataset:
    """Samples [n, ...], or a map-style set of them, with every tenth held out: half validate, half test."""
    if isinstance(data, Dataset):
        return data
    samples, labels = (data, None) if isinstance(data, Tensor) else in_memory(data)
    if len(samples) < 20:
        raise UserError(f"got {len(samples)} samples, expected at least 20: a tenth of them validates and tests")
    place = torch.arange(len(samples)) % 20
    train, valid, test = (place != 9) & (place != 19), place == 9, place == 19
    dataset = Dataset(samples[train], samples[valid], samples[test])
    return dataset if labels is None else dataset._replace(train_labels=labels[train], test_labels=labels[test])
