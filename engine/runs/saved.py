"""A trained run as evaluation, sampling and reports see it: its configuration, data, models and provenance."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.machine import own_device, set_products, set_repeatable
from eblvm.engine.methods.base import Nets, State, empty_weights
from eblvm.engine.models.posteriors import PosteriorOptions
from eblvm.engine.nets.base import Energy
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.optim import replicas
from eblvm.engine.optim.base import Weights
from eblvm.engine.options import nodes
from eblvm.engine.runs import checkpoint, exported
from eblvm.engine.runs.checkpoint import check_payload
from eblvm.engine.runs.folder import expect_same_models, read_config
from eblvm.engine.runs.parent import SAVED_MODELS
from eblvm.engine.types import Params


@dataclass(frozen=True)
class SavedRun:
    """`custom_*` are the models and data that were given in Python, which such a run needs again."""

    folder: Path
    config: Config
    payload: dict[str, Any]  # of the newest checkpoint
    custom_energy: Energy | None = None
    custom_posterior: Posterior | None = None
    custom_data: Dataset | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        data: str | None = None,
        device: str = "cpu",
        step: int | None = None,
        energy: Energy | None = None,
        posterior: Posterior | None = None,
        dataset: Dataset | None = None,
    ) -> SavedRun:
        """The run in `folder`, or the exported model there, on `device`, at its newest checkpoint or that of `step`;
        `data` says where the data set is now, if it moved."""
        config = read_config(folder).replaced(device=device)
        if data is not None:
            config = config.replaced(data=data)
        config.check()
        config = config.replaced(device=own_device(device))
        set_products(config.model.precision)
        if config.running.on_cuda:
            set_repeatable(config.running.deterministic)
        expect_same_models(folder, config, energy, posterior)
        return cls(folder, config, payload_at(folder, step), energy, posterior, dataset)

    @classmethod
    def of_weights(cls, folder: Path, step: int | None = None) -> SavedRun:
        """The run's weights on the CPU, for another run to start from: neither its data nor its models are needed."""
        return cls(folder, read_config(folder).replaced(device="cpu"), payload_at(folder, step))

    @cached_property
    def dataset(self) -> Dataset:
        return self.custom_data or self.config.load_data()

    def decoded(self) -> SavedRun:
        """Return the run with every picture at hand, as evaluations need: streamed ones are decoded into a store."""
        if self.custom_data is not None or self.config.dataset.input == "memory":
            return self
        return replace(self, custom_data=self.config.replaced(input="memory").load_data())

    @cached_property
    def extent(self) -> Tensor:
        """The lowest and the highest value of every unit of the training data, [2, ...]; of bytes 0 and 1."""
        if (known := self.payload.get("extent")) is not None:
            return known.to(self.config.running.device)
        train, dtype = self.dataset.train, self.dataset.dtype
        if train.dtype == torch.uint8:
            ends = torch.tensor([0.0, 1.0], dtype=dtype, device=self.config.running.device)
            return ends.view(2, *[1] * (train.dim() - 1)).expand(2, *train.shape[1:])
        return torch.stack([train.amin(0), train.amax(0)])

    @property
    def kept_means(self) -> Tensor | None:
        """Posterior means [n, H] that an export brings along, where its data are not at hand."""
        kept = self.payload.get("means") if self.custom_data is None and self.config.get("data") is None else None
        return None if kept is None else kept.to(self.config.running.device)

    @property
    def image_shape(self) -> tuple[int, int] | None:
        known = self.payload.get("image_shape", ())
        return self.dataset.image_shape if known == () else known and (known[0], known[1])

    @property
    def shape(self) -> tuple[int, ...]:
        known = self.payload.get("extent")
        return tuple((self.dataset.train if known is None else known).shape[1:])

    @cached_property
    def energy(self) -> Energy:
        return self.custom_energy or self.config.model.energy(self.shape, self.config.method.learns_q)

    @cached_property
    def posterior(self) -> Posterior | None:
        """q(h|v) of a method that learns one next to an energy; BiDVL's encoder is a part of its objective."""
        options = self.config.get("posterior")
        if options is None:
            return None
        node = next(n for n in nodes(self.config.method) if isinstance(n, PosteriorOptions))
        return self.custom_posterior or node.build(self.shape, self.config.model)

    @property
    def is_grbm(self) -> bool:
        """A model with a generator has no energy apart from its objective."""
        return not self.config.model.generates and isinstance(self.energy, GRBM)

    @property
    def grbm(self) -> GRBM:
        if not self.is_grbm:
            raise UserError(f"{self.folder} is a run of model {self.config.model.kind!r}; this is for a GRBM")
        return cast(GRBM, self.energy)

    @cached_property
    def nets(self) -> Nets:
        """The modules of the training method, with what it has them read of the data."""
        exported = "extent" in self.payload
        like = self.extent if exported and self.config.model.generates else self.dataset.train  # it reads the shape
        return self.config.method.nets(self.config, like, self.custom_energy, self.custom_posterior)

    def state(self, model: str) -> State:
        """Return the state of a model, of replicas the first one's, for evaluation: its weights and buffers."""
        phi, buffers = self.phi(model), self.buffers(model)
        if self.config.replicated:
            if self.config.model.generates:
                raise UserError(f"{self.folder} has replicas; BiDVL is evaluated one run at a time")
            phi, buffers = replicas.pick((phi, buffers), 0)
        moments = empty_weights().moments
        return State(Weights(self.thetas(model)[0], moments), Weights(phi, moments), buffers=buffers)

    def default_model(self) -> str:
        """The best by validation where the run validated, as the papers choose; otherwise the last."""
        return "best" if self.payload["best"] else "last"

    def thetas(self, model: str) -> list[Params]:
        if model not in SAVED_MODELS:
            raise unknown("model", model, list(SAVED_MODELS))
        if model == "best" and not self.payload["best"]:
            raise UserError(f"{self.folder} has not validated yet, so it has no best model; use --model last")
        if model == "ema" and not self.payload["state"]["ema"]:
            raise UserError(f"{self.folder} was trained without --ema; use --model last")
        theta = self._weights(model)["ema" if model == "ema" else "theta"]
        theta = self._placed({k: p for k, p in theta.items() if k != "log_z"})  # NCE's normaliser is not the model's
        if not self.config.replicated:
            return [theta]
        return [replicas.pick(theta, r) for r in range(self.config.optimisation.count)]

    def phi(self, model: str) -> Params:
        """phi of a single run; a run of an older version averaged theta alone, and gives the last phi."""
        averaged = self.payload["state"].get("phi_ema") if model == "ema" else None
        return self._placed(averaged or self._weights(model)["phi"])

    def buffers(self, model: str) -> Params:
        """Tensors of a single run's nets that are no parameters; the moving average has the last ones."""
        return self._placed(self._weights(model).get("buffers", {}))

    def _weights(self, model: str) -> dict[str, Any]:
        return self.payload["best" if model == "best" else "state"]

    def _placed(self, tree: Params) -> Params:
        return {k: p.to(self.config.running.device) for k, p in tree.items()}

    def step_of(self, model: str) -> int | list[int]:
        return self.payload["best"]["step"] if model == "best" else self.payload["step"]


def payload_at(folder: Path, step: int | None) -> dict[str, Any]:
    """The state of a run, or of an exported folder: at its newest good checkpoint, or at that of a step."""
    if exported.is_export(folder):
        if step is not None:
            raise UserError(f"{folder} is an exported model, which has no steps to choose from; remove the step")
        return exported.read(folder)
    if step is not None:
        kept = sorted(checkpoint.steps(folder / "checkpoints"))
        if step not in kept:
            raise UserError(f"{folder} has no checkpoint of step {step}; it kept {', '.join(map(str, kept)) or 'none'}")
        return checkpoint.read(checkpoint.path_of(folder / "checkpoints", step))
    payload, passed_over = checkpoint.newest(folder / "checkpoints", check_payload)
    for sentence in passed_over:
        print(f"warning: {sentence}; using an older one", file=sys.stderr)
    if payload is None:
        raise UserError(f"{folder} has no checkpoint yet; let 'eblvm train' run longer")
    return payload
