"""`eblvm eval`: every figure a run of a GRBM can be judged by, as eval.json and pictures."""

import statistics
import time
from typing import Any

import torch

from eblvm.engine import replicas
from eblvm.engine.eval import pictures
from eblvm.engine.eval.gradient_bias import gradient_bias
from eblvm.engine.eval.likelihood import LogZ, ais, exact_log_z, log_likelihood
from eblvm.engine.eval.score_matching import score_matching_loss
from eblvm.engine.log import progress
from eblvm.engine.models.energy import Params
from eblvm.engine.models.grbm import MAX_ENUMERATED_H
from eblvm.engine.objectives import build
from eblvm.engine.objectives.state import state_from
from eblvm.engine.run import Run, versions
from eblvm.engine.samplers.gibbs import gibbs, uniform_start
from eblvm.engine.schedule import step_rates
from eblvm.kernels.philox import Key

SAMPLES, SWEEPS = 100, 1000  # of the picture: the papers run 1,000 Gibbs sweeps
BIAS_NS, BIAS_KS = (0, 1, 2, 5, 10, 20), (0, 1, 5, 20)


def evaluate(run: Run, model: str, chains: int, temperatures: int, force_ais: bool) -> dict[str, Any]:
    """Log-likelihood (exact or AIS) and score matching loss of every replica; pictures of samples and density."""
    began = time.time()
    torch.set_num_threads(run.config.threads)
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
    drawn = sample(run, model, SAMPLES, SWEEPS, run.config.seed)
    pictures.samples(drawn, run.dataset.image_shape, run.folder / "samples.png")
    means = {k: statistics.fmean(r[k] for r in rows) for k in rows[0] if k != "replica"}
    deviations = {k: statistics.stdev(r[k] for r in rows) if len(rows) > 1 else 0.0 for k in means}
    return {
        "config": run.config.to_json(),
        "model": model,
        "step": run.step_of(model),
        "likelihood": "exact" if exact else f"AIS, {chains} chains x {temperatures} temperatures",
        "mean": means,
        "deviation": deviations,
        "replicas": rows,
        "versions": versions(),
        "seconds": round(time.time() - began, 1),
    }


def _ais_with_bar(run: Run, theta: Params, chains: int, temperatures: int, name: str) -> LogZ:
    with progress(temperatures, f"AIS {name}", "temperature") as bar:
        return ais(run.energy, theta, Key(run.config.seed, 0), chains, temperatures, lambda _: bar.update() and None)


def sample(run: Run, model: str, count: int, steps: int, seed: int) -> torch.Tensor:
    """`count` samples of the first replica by Gibbs sampling; for images the means of p(v|h), as is usual to show."""
    torch.set_num_threads(run.config.threads)
    theta, key = run.thetas(model)[0], Key(seed, 0)
    start = uniform_start(key, count, run.dataset.train)
    with progress(steps, "Gibbs", "sweep") as bar:
        v, mean = gibbs(theta, key, start, steps, lambda count: bar.update(count) and None)
    return v if run.dataset.image_shape is None else mean


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
