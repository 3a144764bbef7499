"""`eblvm eval`: every figure a run can be judged by, as eval.json and pictures."""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from eblvm.engine import replicas
from eblvm.engine.eval import bidvl, deep, pictures
from eblvm.engine.eval.gradient_bias import gradient_bias
from eblvm.engine.eval.likelihood import LogZ, ais, exact_log_z, log_likelihood
from eblvm.engine.eval.score_matching import score_matching_loss
from eblvm.engine.log import progress
from eblvm.engine.models.energy import Params
from eblvm.engine.models.grbm import MAX_ENUMERATED_H
from eblvm.engine.objectives import build
from eblvm.engine.objectives.state import state_from
from eblvm.engine.run import Run, versions
from eblvm.engine.sampling import GIBBS_SWEEPS, sample
from eblvm.engine.schedule import step_rates
from eblvm.kernels.philox import Key

SAMPLES = 100  # of the picture
BIAS_NS, BIAS_KS = (0, 1, 2, 5, 10, 20), (0, 1, 5, 20)


def evaluate(
    run: Run, model: str, chains: int, temperatures: int, force_ais: bool, outside: Mapping[str, Path] | None = None
) -> dict[str, Any]:
    """The figures of every replica with their mean and deviation; writes pictures beside them.

    `outside` names other data sets, which bidvl's energy is to tell from the run's own."""
    began = time.time()
    torch.set_num_threads(run.config.threads)
    if run.config.method == "bidvl":
        rows, likelihood = bidvl.rows(run, model, outside or {}), "not tractable"
    elif run.config.model == "deep":
        rows, likelihood = deep.rows(run, model), "not tractable"
    else:
        rows, likelihood = grbm_rows(run, model, chains, temperatures, force_ais)
    means = {k: statistics.fmean(r[k] for r in rows) for k in rows[0] if k != "replica"}
    deviations = {k: statistics.stdev(r[k] for r in rows) if len(rows) > 1 else 0.0 for k in means}
    return {
        "config": run.config.to_json(),
        "model": model,
        "step": run.step_of(model),
        "likelihood": likelihood,
        "mean": means,
        "deviation": deviations,
        "replicas": rows,
        "versions": versions(),
        "seconds": round(time.time() - began, 1),
    }


def grbm_rows(
    run: Run, model: str, chains: int, temperatures: int, force_ais: bool
) -> tuple[list[dict[str, Any]], str]:
    """Log-likelihood (exact or AIS, and which) and score matching loss; pictures of samples and density."""
    rows, panels = [], []
    for name, theta in zip(replicas.names(run.config), run.thetas(model), strict=True):
        exact = run.config.latent <= MAX_ENUMERATED_H and not force_ais
        log_z = exact_log_z(run.energy, theta) if exact else _ais_with_bar(run, theta, chains, temperatures, name)
        row: dict[str, Any] = {"replica": name, "log_z": log_z.value, "log_z_standard_error": log_z.standard_error}
        for split in ("valid", "test"):
            v = getattr(run.dataset, split)
            row[f"{split}_log_likelihood"] = log_likelihood(run.energy, theta, v, log_z.value)
            row[f"{split}_fisher"] = score_matching_loss(run.energy, theta, v)
        rows.append(row)
        panels.append((name, run.energy, theta, log_z.value))
    if run.dataset.train.shape[1] == 2:
        pictures.density(panels[:4], run.dataset.train, run.folder / "density.png")
    drawn = sample(run, model, SAMPLES, GIBBS_SWEEPS, run.config.seed)
    pictures.samples(drawn, run.dataset.image_shape, run.folder / "samples.png")
    return rows, "exact" if exact else f"AIS, {chains} chains x {temperatures} temperatures"


def _ais_with_bar(run: Run, theta: Params, chains: int, temperatures: int, name: str) -> LogZ:
    with progress(temperatures, f"AIS {name}", "temperature") as bar:
        return ais(run.energy, theta, Key(run.config.seed, 0), chains, temperatures, lambda _: bar.update() and None)


def bias_study(run: Run) -> dict[str, Any]:
    """Fig. 1 of the BiSM paper at this run's last state: the gradient's relative bias against N and K."""
    torch.set_num_threads(run.config.threads)
    objective = build(run.config, run.dataset).objective
    state = state_from(run.payload["state"], torch.device(run.config.device))
    rates = step_rates(run.config, 0, run.dataset.train)
    if run.config.replicated:
        state, rates = replicas.pick((state, rates), 0)
    table = gradient_bias(objective, state, run.dataset.train[: run.config.batch], rates, BIAS_NS, BIAS_KS)
    pictures.gradient_bias(table, BIAS_NS, BIAS_KS, run.folder / "gradient_bias.png")
    return {"N": BIAS_NS, "K": BIAS_KS, "relative_bias": table}
