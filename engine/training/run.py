"""A trained run as evaluation, sampling and reports see it: its configuration, data, models and provenance."""

import json
import platform
import sys
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from eblvm.engine.config import Config
from eblvm.engine.data import Dataset, load
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.models import energy_for
from eblvm.engine.models.energy import Params
from eblvm.engine.models.grbm import GRBM
from eblvm.engine.training import checkpoint, replicas
from eblvm.kernels import backends

MODELS = ("best", "last", "ema")


@dataclass(frozen=True)
class Run:
    folder: Path
    config: Config
    payload: dict[str, Any]  # of the newest checkpoint

    @classmethod
    def open(cls, folder: Path, data: str | None = None, device: str = "cpu", step: int | None = None) -> "Run":
        """The run in `folder`, on `device`, at its newest checkpoint or that of `step`; `data` says where the data set
        is now, if it moved."""
        config = read_config(folder).replaced(device=device)
        if data is not None:
            config = config.replaced(data=data)
        config.validate()
        if step is not None:
            return cls(folder, config, checkpoint_of(folder, step))
        payload, passed_over = checkpoint.newest(folder / "checkpoints")
        for sentence in passed_over:
            print(f"warning: {sentence}; using an older one", file=sys.stderr)
        if payload is None:
            raise UserError(f"{folder} has no checkpoint yet; let 'eblvm train' run longer")
        return cls(folder, config, payload)

    @cached_property
    def dataset(self) -> Dataset:
        return load(self.config)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.train.shape[1:])

    @property
    def energy(self) -> GRBM:
        energy = energy_for(self.config, self.shape)
        if not isinstance(energy, GRBM):
            raise UserError(f"{self.folder} is a run of a deep model; this is for a GRBM")
        return energy

    def default_model(self) -> str:
        """The best by validation where the run validated, as the papers choose; otherwise the last."""
        return "best" if self.payload["best"] else "last"

    def thetas(self, model: str) -> list[Params]:
        """theta of every replica (one for a single run)."""
        if model not in MODELS:
            raise unknown("model", model, list(MODELS))
        if model == "best" and not self.payload["best"]:
            raise UserError(f"{self.folder} has not validated yet, so it has no best model; use --model last")
        if model == "ema" and not self.payload["state"]["ema"]:
            raise UserError(f"{self.folder} was trained without --ema; use --model last")
        theta = (
            self.payload["best"]["theta"]
            if model == "best"
            else self.payload["state"]["ema" if model == "ema" else "theta"]
        )
        theta = {
            k: p.to(self.config.device) for k, p in theta.items() if k != "log_z"
        }  # the normaliser that NCE learns is not the model's
        if not self.config.replicated:
            return [theta]
        return [replicas.pick(theta, r) for r in range(len(replicas.names(self.config)))]

    def phi(self, model: str) -> Params:
        """phi of a single run; the moving average has none of its own and takes the last."""
        phi = self.payload["best" if model == "best" else "state"]["phi"]
        return {k: p.to(self.config.device) for k, p in phi.items()}

    def buffers(self, model: str) -> Params:
        """What the nets of a single run hold beside parameters; the moving average takes the last."""
        buffers = self.payload["best" if model == "best" else "state"].get("buffers", {})
        return {k: b.to(self.config.device) for k, b in buffers.items()}

    def step_of(self, model: str) -> int | list[int]:
        return self.payload["best"]["step"] if model == "best" else self.payload["step"]


def checkpoint_of(folder: Path, step: int) -> dict[str, Any]:
    kept = sorted(checkpoint.steps(folder / "checkpoints"))
    if step not in kept:
        raise UserError(f"{folder} has no checkpoint of step {step}; it kept {', '.join(map(str, kept)) or 'none'}")
    return checkpoint.read(checkpoint.path_of(folder / "checkpoints", step))


def read_config(folder: Path) -> Config:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a run folder (it has no config.json); give the --out of an 'eblvm train'")
    try:
        return Config.from_json(json.loads(path.read_text()))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON ({error}); restore it, or train into another --out") from None


def versions() -> dict[str, str]:
    """What figures depend on: the package, Python, torch, and the backend that serves each kernel op on the CPU."""
    serving = ", ".join(f"{b.op}={b.name}" for b in backends() if b.serves and b.device == "cpu")
    return {
        "eblvm": version("eblvm"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernels": serving,
    }
