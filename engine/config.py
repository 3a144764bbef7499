"""A run's configuration: the typed tree of the objects that it sets up. It knows trees, JSON and differences.

    Config
      method         what is minimised: a product of an estimator and a loss, or a method of its own  engine/methods
      model          the energy                                                                       engine/models
      dataset        where the samples come from                                                      engine/data
      optimisation   steps, batch, Adam, schedule, seeds                                              engine/optim
      step           how a step runs: in chunks, fused, compiled                                      engine/training
      running        device, logs, checkpoints                                                        here

Every option lives in the object that reads it; a recipe is a function that returns such a tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from typing import TYPE_CHECKING, Any

from eblvm.engine import legacy, options, values
from eblvm.engine.data.sets import KINDS as DATASETS
from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.methods import KINDS as METHODS
from eblvm.engine.methods.base import Method
from eblvm.engine.models import KINDS as MODELS
from eblvm.engine.models.base import Model
from eblvm.engine.optim.optimisation import Cosine, Optimisation
from eblvm.engine.options import Options, flag, option, slot
from eblvm.engine.training.step import Step
from eblvm.engine.values import UnreadOptionError

if TYPE_CHECKING:
    from eblvm.engine.data.dataset import Dataset

NEEDS = {
    "compiles": "a step that compiles", "continuous_h": "a continuous h", "linear_in_h": "a binary h",
    "exact_kl": "an energy whose mean over q is known",
    "learns_q": "a method that learns q(h|v)",
    "micro_batches": "a loss of single samples", "perturbs": "a loss that perturbs the data",
    "unrolls": "--best-response unroll",
}  # fmt: skip  # of options, in words
FORMAT = 3  # of config.json; 1 was one flat record of all options, 2 had those of `step` in `running`


class Running(Options):
    """Options of computing and writing that do not depend on the method."""

    group = "running"

    device: str = option("cpu", "cpu or cuda (cuda:0, cuda:1, ...)", mathematical=False)
    deterministic: bool = option(
        False, "the same bits from run to run on a GPU too, at some cost; the CPU gives them anyway", mathematical=False
    )
    timeout: float = option(
        30.0,
        "minutes that a process of several waits for the others before it gives up",
        above=0,
        high=1e6,
        mathematical=False,
    )
    threads: int = option(
        1,
        "CPU threads per process; their number changes results by rounding only",
        low=1,
        high=1024,
        mathematical=False,
    )
    dtype: str = option("float32", "of parameters and data", choices=("float32", "float64"))
    validations: int = option(10, "evaluations of the validation loss in a run, 0 for none", low=0)
    log_every: int = option(100, "steps between lines of stats.jsonl", low=1, high=2**31 - 1, mathematical=False)
    validate_minutes: float = option(
        0.0, "also validate after so many minutes; which model is the best then depends on the machine; 0: never", low=0
    )
    preview_every: int | None = option(
        None,
        "steps between pictures in RUN/previews and the loggers, 0 for none; none: at validations, once a minute",
        low=0,
        high=2**31 - 1,
        mathematical=False,
    )
    logger: tuple[str, ...] = option(
        ("tensorboard",), "where curves go", choices=("tensorboard", "wandb", "mlflow"), mathematical=False
    )
    checkpoint_every: int = option(1000, "steps between checkpoints", low=1, high=2**31 - 1, mathematical=False)
    checkpoint_minutes: float = option(
        10.0, "also save a checkpoint after so many minutes; 0: never", low=0, mathematical=False
    )
    keep: int = option(2, "checkpoints kept", low=1, mathematical=False)
    requeue: bool = option(
        False, "in a SLURM job: save and ask for the job again at SIGUSR1 or SIGUSR2", mathematical=False
    )

    @property
    def on_cuda(self) -> bool:
        return self.device.startswith("cuda")

    def check(self, config: Config) -> None:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            raise UserError(f"got device={self.device!r}, expected cpu or cuda (cuda:0, cuda:1, ...)")


class Config(Options):
    method: Method = slot(METHODS, "training method")
    model: Model = slot(MODELS, "the energy; 'custom' is given in Python, see docs/models.md")
    dataset: DataOptions = slot(DATASETS, "the data set")
    optimisation: Optimisation = field(default_factory=Optimisation)
    step: Step = field(default_factory=Step)
    running: Running = field(default_factory=Running)
    recipe: str = ""
    small: bool = False
    presets: Mapping[str, Any] = field(
        default_factory=dict, compare=False, repr=False
    )  # of options not in the tree yet

    def __repr__(self) -> str:
        return f"Config({self.recipe!r}: {self.method.kind} on {self.model.kind}, {self.optimisation.steps} steps)"

    @classmethod
    def of(cls, recipe: str, method: str, model: str, dataset: str, small: bool = False, **presets: Any) -> Config:
        """The tree of these kinds with `presets` for its options, by name, now or after another kind is chosen."""
        for slot_name, kind, every in (("method", method, METHODS), ("model", model, MODELS)):
            if kind not in every:
                raise unknown(slot_name, kind, list(every))
        nodes = METHODS[method], MODELS[model], DATASETS[dataset]
        return values.with_presets(cls(*nodes, recipe=recipe, small=small, presets=presets), presets)

    def replaced(self, **changes: Any) -> Config:
        """With options, or kinds, set by name. What this run does not read is an error that says who reads it."""
        presets = {**self.presets, **changes}
        try:
            found = values.with_values(self, changes, presets)
        except UnreadOptionError as error:
            raise error.root.unread(error.name) from None  # the tree with the kinds that were asked for
        return replace(found, presets=presets)

    def __getitem__(self, name: str) -> Any:
        for leaf in self.leaves():
            if leaf.name == name:
                return leaf.value
        raise self.unread(name)

    def get(self, name: str, default: Any = None) -> Any:
        return next((leaf.value for leaf in self.leaves() if leaf.name == name), default)

    @property
    def replicated(self) -> bool:
        return self.optimisation.replicated

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a sample, known without the data."""
        return self.dataset.shape(self.model.images)

    def load_data(self) -> Dataset:
        import torch

        dataset = self.dataset.load(self.model.images, self.running.threads)
        return dataset.to(self.running.device, getattr(torch, self.running.dtype))

    def check(self) -> None:  # type: ignore[override]
        """Raise a `UserError` for the first mistake that can be seen without data and without torch."""
        for node in checking(self.optimisation, self.running, self.step, self.model):
            node.check(self)

        method, model, batch = self.method, self.model, self.optimisation.batch
        if model.generates != method.generates:
            wanted = "needs a model with a generator" if method.generates else "trains no generator"
            fitting = [kind for kind, node in MODELS.items() if node.generates == method.generates and node.images]
            raise UserError(
                f"method {method.kind!r} {wanted}, got model {model.kind!r}; use --model {' or '.join(fitting)}, on a "
                "recipe of images"
            )
        if method.needs_conditionals and not model.conditionals:
            raise UserError(
                f"method {method.kind!r} needs the GRBM's conditionals or its normaliser, model {model.kind!r} has "
                "neither; use a score matching method"
            )
        if method.pairs_samples and batch % 2:
            raise UserError(
                f"method {method.kind!r} pairs the halves of a batch, got batch={batch}, expected an even number"
            )

        for node in checking(method, self.dataset):
            node.check(self)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "recipe": self.recipe, "small": self.small, **values.to_json(self)}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> Config:
        """A saved configuration, of this version or of the flat form before it."""
        if not isinstance(saved, dict):
            raise UserError("a configuration is a table of options")
        if "format" not in saved:
            try:
                return cls.of(**legacy.settings(saved))
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise UserError(f"this table is no configuration of a run ({type(error).__name__}: {error})") from None
        saved = legacy.tree_settings(saved)
        if saved.pop("format") != FORMAT:
            raise UserError(f"this configuration has another format than {FORMAT}; use the version that wrote it")
        recipe, small = saved.pop("recipe", ""), saved.pop("small", False)
        if not isinstance(recipe, str) or not isinstance(small, bool):
            raise UserError(f"config: got recipe={recipe!r} and small={small!r}, expected a name and true or false")
        bare = cls(next(iter(METHODS.values())), MODELS["grbm"], DATASETS["custom"])
        return replace(values.from_json(bare, saved), recipe=recipe, small=small)

    def differences(self, other: Config) -> list[str]:
        """The mathematical options in which another run's configuration differs; `steps` only if its schedule asks."""
        found = values.differences(other, self)
        if self.recipe != other.recipe:
            found.insert(0, f"recipe {other.recipe!r} -> {self.recipe!r}")
        schedule = self.optimisation.schedule
        if not isinstance(schedule, Cosine) or schedule.horizon is not None:
            found = [sentence for sentence in found if not sentence.startswith("steps ")]
        return found

    def longer(self, other: Config) -> bool:
        """Does this differ from the run `other` in how long it trains, and in nothing else that decides its numbers?"""
        names = {sentence.split()[0] for sentence in self.differences(other)}
        return bool(names) and names <= {"steps", "horizon"}

    def unread(self, name: str) -> UserError:
        """The error for an option that this run does not read: who does, or the nearest names."""
        own = sorted({leaf.name for leaf in self.leaves()})
        readers = who_reads(name)
        run = f"method {self.method.kind!r} on model {self.model.kind!r}"
        for f in (f for node in options.nodes(self) for f in fields(node) if f.name == name):
            if (need := f.metadata.get("needs")) and not options.can(self, need):
                return UserError(f"{run} does not read {flag(name)}; it needs {NEEDS[need]}")
        if not readers:
            return unknown("option", flag(name), [flag(n) for n in own])
        what = " and ".join(f"{slot} {' or '.join(map(repr, kinds))}" for slot, kinds in readers.items())
        who = f"data set {self.dataset.kind!r}" if list(readers) == ["data set"] else run
        return UserError(f"{who} does not read {flag(name)}; it is an option of {what}")


def checking(*parts: Options) -> Iterator[Options]:
    return (node for part in parts for node in options.nodes(part) if type(node).check is not Options.check)


def who_reads(name: str) -> dict[str, list[str]]:
    """The kinds of every slot that have an option of this name; none for an unknown one."""
    found: dict[str, list[str]] = {}
    for slot_name, every in (("method", METHODS), ("model", MODELS), ("data set", DATASETS)):
        found[slot_name] = [kind for kind, node in every.items() if name in _names(node)]
    for node in (*METHODS.values(), *MODELS.values(), Optimisation()):
        for leaf in (leaf for leaf in node.leaves() if leaf.is_slot):
            every = leaf.field.metadata["kinds"]
            found[leaf.name] = [kind for kind, node in every.items() if name in _names(node)]
    return {slot_name: kinds for slot_name, kinds in found.items() if kinds}


def _names(node: Options) -> set[str]:
    return {f.name for n in options.nodes(node) for f in fields(n) if "help" in f.metadata}
