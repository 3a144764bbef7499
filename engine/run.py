"""`eblvm.Run`: a trained model as an object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.distributions import Bernoulli, Distribution, Independent, Normal

from eblvm.engine import evaluation, notebook, sampling, sharing
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.eval_model import EVAL_SEED, LATENT_SAMPLES, eval_models
from eblvm.engine.evaluation.metrics.importance_likelihood import log_density
from eblvm.engine.methods.base import State
from eblvm.engine.nets.posteriors import Posterior
from eblvm.engine.plotting import Picture
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.runs.stats import read_rows
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key


class Run:
    """A trained model, and the results of its training in its folder.

    v is a batch [B, ...] as the model sees it (images in [0, 1]), h is [B, H] or [L, B, H]: tensors, arrays or lists.
    Asking for what a model does not have raises a `UserError` that says why."""

    def __init__(self, saved: SavedRun, model: str | None = None):
        self.saved = saved
        self.model = model or saved.default_model()
        self.folder, self.config = saved.folder, saved.config

    def __repr__(self) -> str:
        what = f"{self.config.recipe} {self.config.method.kind} on {self.config.model.kind}"
        return f"Run({str(self.folder)!r}: {what}, {self.model} model at step {self.step})"

    @property
    def step(self) -> int | list[int]:
        """The steps that the model was trained for; of the best ones of replicas one each."""
        step = self.saved.step_of(self.model)
        return step[0] if isinstance(step, list) and not self.config.replicated else step

    @property
    def complete(self) -> bool:
        """True if it made all its steps. An interrupted run did not; `train` with the same arguments continues it."""
        step = self.saved.payload["step"]  # of an exported best model one for each replica
        return all(s >= self.config.optimisation.steps for s in (step if isinstance(step, list) else [step]))

    @cached_property
    def theta(self) -> Params:
        """The energy's parameters; of replicas the first one's."""
        return self.saved.thetas(self.model)[0]

    @cached_property
    def phi(self) -> Params:
        phi = self.saved.phi(self.model)
        return {k: p[0] for k, p in phi.items()} if self.config.replicated else phi

    def state_dict(self) -> dict[str, Tensor]:
        """All parameters and buffers by name: `theta.*`, `phi.*`, `buffers.*`."""
        parts = {"theta": self.theta, "phi": self.phi, "buffers": self.saved.buffers(self.model)}
        return {f"{part}.{name}": p for part, tree in parts.items() for name, p in tree.items()}

    def _batch(self, given: ArrayLike) -> Tensor:
        """Tensors as they are; arrays and lists in the run's type, on its device."""
        if isinstance(given, Tensor):
            return given
        running = self.config.running
        return torch.as_tensor(np.asarray(given), dtype=getattr(torch, running.dtype), device=running.device)

    def energy(self, v: ArrayLike, h: ArrayLike | None = None) -> Tensor:
        """E(v, h) [..., B]; of a model without latent units, or with a marginal energy of its own, E(v)."""
        v, h = self._batch(v), None if h is None else self._batch(h)
        if self.config.model.generates and h is None:
            return self.config.method.marginal_energy(self.saved.nets, self._state, v)
        if h is None:
            return self.free_energy(v)
        return self.saved.energy.at(self.theta).energy(v, h)

    def free_energy(self, v: ArrayLike) -> Tensor:
        """F(v) = -log sum_h exp(-E(v, h)) [B], up to a constant where q leaves one out.

        Exact where the model has it; otherwise minus the importance-weighted bound with samples of q, which is an upper
        bound on F(v) in expectation."""
        v = self._batch(v)
        if self.config.model.generates:
            return self.energy(v)
        energy: Any = self.saved.energy
        if hasattr(energy, "free_energy"):
            return energy.at(self.theta).free_energy(v)
        sampling = (self._posterior(), self.phi, v, Key(EVAL_SEED, 0), LATENT_SAMPLES)
        return -log_density(energy, self.theta, *sampling).to(v.dtype)

    def score(self, v: ArrayLike) -> Tensor:
        """grad_v log p(v), that of `free_energy`: exact, or by importance sampling of h."""
        with torch.enable_grad():
            x = self._batch(v).detach().requires_grad_()
            (gradient,) = torch.autograd.grad(-self.free_energy(x).sum(), x)
        return gradient

    @torch.no_grad()
    def posterior(self, v: ArrayLike) -> Distribution:
        """q(h|v) as a torch distribution over [B, H]; of a GRBM without q its own p(h|v)."""
        v = self._batch(v)
        if self.config.model.generates:
            mean, log_std = self.config.method.encoded(self.saved.nets, self._state, v)
            return Independent(Normal(mean, log_std.exp()), 1)
        if self.saved.posterior is None:
            logits = self.saved.grbm.at(self.theta).posterior_logits(v)
            return Independent(Bernoulli(logits=logits), 1)
        posterior = self._posterior().at(self.phi)
        return posterior.distribution(posterior.params(v))

    def _posterior(self) -> Posterior:
        if self.saved.posterior is None:
            raise UserError(f"method {self.config.method.kind!r} learns no posterior q(h|v)")
        return self.saved.posterior

    @cached_property
    def _state(self) -> State:
        return self.saved.state(self.model)

    def sample(
        self,
        count: int = 100,
        *,
        steps: int | None = None,
        kind: str | None = None,
        seed: int = 0,
        start: str | None = None,
        sampler: str | None = None,
        **options: Any,
    ) -> Tensor:
        """Samples [count, ...] by `sampler`, or the run's own: Gibbs sweeps, annealed Langevin dynamics or a generator.

        Further options are those of `eblvm sample`. Sample i depends on the seed and on i only."""
        chosen = sampling.sampler_of(self.saved, sampler, steps=steps, target=kind, start=start, **options)
        return chosen.sample(self.saved, self.model, count, seed).values

    @torch.no_grad()
    def reconstruct(self, v: ArrayLike) -> Tensor:
        """v through the posterior mean and back; a deep EBLVM's p(v|h) is a Markov chain and has no such map."""
        evaluated = eval_models(self.saved, self.model)[0]
        if evaluated.reconstruct is None:
            raise UserError(f"model {self.config.model.kind!r} has no decoder; sample p(v|h) with kind='given-h'")
        return evaluated.reconstruct(self._batch(v))

    def evaluate(
        self,
        *,
        chains: int = 2000,
        temperatures: int = 2000,
        ais: bool = False,
        draw: int | None = None,
        fid: int | None = None,
        samples: str | Path | None = None,
        reference: int | None = None,
        inception: str | Path | None = None,
        ood: Mapping[str, str | Path] | None = None,
        kind: str | None = None,
        steps: int | None = None,
        seed: int = 0,
        again: bool = False,
    ) -> dict[str, float | str]:
        """The figures of `eblvm eval` by name, or why one is not known; they are also in eval.json of the folder.

        `chains` and `temperatures` are those of AIS, which `ais` asks for even where log Z is exact; `draw` samples are
        shown, `fid` samples compared with `reference` training images (none: all) through the `inception` weights.
        `samples` is a file of samples to judge in the place of drawn ones, `ood` names sets of other data, as
        `{"svhn": "svhn.npz"}`. `kind`, `steps` and `seed` are the sampler's; `again` computes what is known already."""
        given = {"samples": samples, "inception": inception}
        paths = {name: None if path is None else Path(path) for name, path in given.items()}
        options = evaluation.EvalOptions(
            chains=chains, temperatures=temperatures, ais=ais, draw=draw, fid=fid, reference=reference, kind=kind,
            steps=steps, seed=seed, again=again, ood={name: Path(path) for name, path in (ood or {}).items()}, **paths,
        )  # fmt: skip
        return evaluation.evaluate(self.saved, self.model, options)["mean"]

    @cached_property
    def history(self) -> dict[str, list[Any]]:
        """The log, a column per quantity and `step`, None where a line lacks it: ready for a plot or a
        data frame."""
        rows = read_rows(self.folder / "stats.jsonl")
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def to_frame(self) -> Any:
        """`history` as a pandas data frame, indexed by step."""
        try:
            import pandas
        except ImportError:
            raise UserError("pandas is not installed; pip install pandas, or use run.history") from None
        return pandas.DataFrame(self.history).set_index("step")

    def plot(self, *names: str) -> Picture:
        """Draw the curves of the log, or those of `names`, as a matplotlib figure."""
        return notebook.curves(self.history, names)

    def show_samples(self, count: int = 25, **options: Any) -> Picture:
        """Draw `count` samples as a matplotlib figure: images as a grid, others as points. Options as of `sample`."""
        return notebook.samples(self.sample(count, **options), self.saved.image_shape)

    def _repr_html_(self) -> str:
        """What a notebook shows: the run, its curves and, of a run that has drawn some, its samples."""
        return notebook.page(repr(self), self.history, self.folder)

    def export(
        self, out: str | Path, *, safetensors: bool = True, state_dict: bool = False, onnx: bool = False
    ) -> Path:
        """Write the model, its configuration and a model card to a folder that `load` reads anywhere."""
        sharing.export(self.saved, self.model, Path(out), safetensors=safetensors, state_dict=state_dict, onnx=onnx)
        return Path(out)

    def save_config(self, path: str | Path) -> None:
        """Write the configuration, for `eblvm train --config`."""
        Path(path).write_text(json.dumps(self.config.to_json(), indent=2) + "\n")
