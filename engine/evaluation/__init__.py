"""`eblvm eval`: every figure of a run, as eval.json and plots.

An evaluation is a list of sections (sections.py). The figures of a section are written to eval.json at once, with the
settings they depend on: a killed evaluation continues with the section it was in, and existing results of the same
model and data are reused.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eblvm.engine import sampling
from eblvm.engine.durable import write_atomic
from eblvm.engine.evaluation import figures, plots
from eblvm.engine.evaluation.metrics.image_distances import extracted
from eblvm.engine.evaluation.sample_chunks import Shard, tensor_digest
from eblvm.engine.evaluation.sample_sections import fid_inputs
from eblvm.engine.evaluation.section import EvalOptions, Section
from eblvm.engine.evaluation.sections import sections_of, source_of, weights_of
from eblvm.engine.evaluation.studies.gradient_bias import gradient_bias
from eblvm.engine.methods.base import from_tree
from eblvm.engine.optim import replicas
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.runs.stats import read_eval
from eblvm.engine.versions import versions

__all__ = ["EvalOptions", "bias_study", "evaluate", "make_shard"]
BIAS_NS, BIAS_KS = (0, 1, 2, 5, 10, 20, 30), (0, 1, 5, 20)


def evaluate(
    run: SavedRun, model: str, options: EvalOptions, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """The figures of every replica with their mean and deviation, as they are in eval.json. `say` gets a line on every
    section before the first begins."""
    torch.set_num_threads(run.config.running.threads)
    run = run.decoded()
    facts = provenance(run, model)
    done = {} if options.again else sections_done(run.folder / "eval.json", facts)
    sections = sections_of(run, model, facts["weights"], options)
    todo = [section for section in sections if done.get(section.name, {}).get("settings") != section.settings]
    for line in plan_of(run, todo, [s.name for s in sections if s not in todo], options):
        say(line)
    for section in todo:
        began = time.time()
        found = [figures.checked(row) for row in section.compute()]
        done[section.name] = {"settings": section.settings, "figures": found, "seconds": round(time.time() - began, 1)}
        facts |= summary(run, done)
        write_atomic(run.folder / "eval.json", (json.dumps(facts, indent=2) + "\n").encode())
    return facts | summary(run, done)


def provenance(run: SavedRun, model: str) -> dict[str, Any]:
    """The model, the run, the data and the code of an evaluation."""
    data = run.dataset
    return {
        "config": run.config.to_json(),
        "model": model,
        "ema": model == "ema",
        "step": run.step_of(model),
        "seed": run.config.optimisation.seed,
        "weights": weights_of(run, model),
        "data": tensor_digest({"train": data.train, "valid": data.valid, "test": data.test}),
        "samples": {split: len(getattr(data, split)) for split in ("train", "valid", "test")},
        "versions": versions(run.config.running.device),
    }


def sections_done(path: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """The sections that an eval.json has of the same weights, data and versions."""
    before = read_eval(path)
    if before is None:
        return {}
    same = all(before.get(name) == facts[name] for name in ("model", "weights", "data", "versions"))
    return before["sections"] if same else {}


def summary(run: SavedRun, done: dict[str, Any]) -> dict[str, Any]:
    """Figures by replica, their mean and deviation over seeds, for every learning rate apart, over all sections."""
    optimisation = run.config.optimisation
    names, labels = optimisation.names(), optimisation.rate_labels()
    rows: list[dict[str, Any]] = [{"replica": name} for name in names]
    for section in done.values():
        for row, found in zip(rows, section["figures"], strict=False):  # some are of the first replica only
            row |= found
    values = {
        replicas.labelled(k, label): found
        for k in rows[0]
        if k != "replica"
        for label, found in replicas.by_rate([row[k] for row in rows if k in row], labels).items()
    }
    return {
        "likelihood": done.get("likelihood", {}).get("settings", {}).get("log_z", "not tractable"),
        "mean": {k: figures.mean(v) for k, v in values.items()},
        "deviation": {k: figures.deviation(v) for k, v in values.items()},
        "replicas": rows,
        "sections": done,
        "seconds": round(sum(section["seconds"] for section in done.values()), 1),
    }


def plan_of(run: SavedRun, todo: Sequence[Section], reused: Sequence[str], options: EvalOptions) -> list[str]:
    """Said before an evaluation begins: a line per section to come, and one for what is there already."""
    before = seconds_before(run.folder / "eval.json")
    lines = []
    for section in todo:
        known = f", {before[section.name]:.0f} s the last time" if before.get(section.name) else ""
        lines.append(f"to do: {section.name}{work(run, section, options)}{known}")
    if reused:
        lines.append(f"reused from eval.json: {', '.join(reused)} (--again computes them)")
    return lines


def work(run: SavedRun, section: Section, options: EvalOptions) -> str:
    """In sweeps and passes, which need the time."""
    replicas = f" for each of {len(run.thetas('last'))} replicas" if run.config.replicated else ""
    settings = section.settings
    if section.name == "likelihood" and "AIS" in str(settings.get("log_z", "")):
        return f": {settings['log_z']}, twice{replicas}"
    if section.name in ("samples", "fid") and options.samples is None:
        count = settings.get("count", options.fid)
        sampler = sampling.sampler_of(run, target=options.kind, steps=options.steps)
        inception = ", then Inception on them and on the reference" if section.name == "fid" else ""
        return f": {count} samples{sampler.work}{inception}"
    return replicas and f":{replicas}"


def seconds_before(path: Path) -> dict[str, float]:
    try:
        sections: Any = json.loads(path.read_text())["sections"]
        return {name: float(section["seconds"]) for name, section in sections.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def make_shard(run: SavedRun, model: str, options: EvalOptions, shard: Shard) -> None:
    """This process's shard of a FID's samples and features; `evaluate` reuses them."""
    torch.set_num_threads(run.config.running.threads)
    run = run.decoded()
    source = source_of(run, model, weights_of(run, model), options)
    samples, reference, net = fid_inputs(run, source, options)
    for images, name in ((samples, "samples"), (reference, "reference")):
        for _ in extracted(images, net, shard, f"{name}, shard {shard.rank}/{shard.of}"):
            pass


def bias_study(run: SavedRun) -> dict[str, Any]:
    """Fig. 1 of the BiSM paper at this run's last state: the gradient's relative bias against N and K."""
    torch.set_num_threads(run.config.running.threads)
    state = from_tree(run.payload["state"], torch.device(run.config.running.device))
    method, optimisation = run.config.method, run.config.optimisation
    rates = optimisation.rates(0, method.rates(), run.dataset.train)
    if run.config.replicated:
        state, rates = replicas.pick((state, rates), 0)
    v = run.dataset.train[: optimisation.batch]
    facts = gradient_bias(method, run.nets, state, v, rates, BIAS_NS, BIAS_KS)
    plots.gradient_bias(facts, run.folder / "gradient_bias.png")
    return facts
