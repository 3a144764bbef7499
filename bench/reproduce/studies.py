"""Rows of experiments that are judged by a study, not by `eblvm eval`: each gives its figures by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from eblvm.bench.measurements.studies import LEVELS, fisher_rows
from eblvm.bench.profiling import profile
from eblvm.bench.reproduce import running
from eblvm.bench.reproduce.experiments import Experiment, Row
from eblvm.engine import evaluation
from eblvm.engine.evaluation.studies.posterior_bias import Point, gaussian_bias, grbm_bias
from eblvm.engine.recipes import recipe
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training.loop import train

Figures = dict[str, float]
BIAS_LATENT = 400  # units of h, as published


def run(experiment: Experiment, row: Row, settings: running.Settings, say: running.Say) -> dict[str, Any] | None:
    """The figures of a study, as a trained row has them; None if it was interrupted."""
    torch.set_num_threads(1)
    studies: dict[str, Callable[..., list[Figures] | None]] = {
        "bias": bias, "profile": profiled, "fisher": fisher, "theory-grbm": theory, "theory-gaussian": theory,
    }  # fmt: skip
    found = studies[row.study](experiment, row, settings, say)
    if found is None:
        return None
    return {
        "model": "last",
        "mean": {name: statistics.fmean(f[name] for f in found) for name in found[0]},
        "deviation": {name: statistics.stdev(f[name] for f in found) if len(found) > 1 else 0.0 for name in found[0]},
        "by_seed": found,
        "steps": settings.steps,
    }


def bias(experiment: Experiment, row: Row, settings: running.Settings, say: running.Say) -> list[Figures] | None:
    """Relative bias of the gradient by N and K, and of the Newton step, at the end of a run; a run per seed."""
    found = []
    for seed in range(running.seeds(experiment, settings)):
        config = running.row_config(experiment, row, settings).replaced(replicas=1, seed=seed)
        folder = settings.out / f"{running.slug(row.label)}-seed-{seed}"
        if not train(config, folder, say):
            return None
        facts = evaluation.bias_study(SavedRun.open(folder))
        figures = {
            f"relative bias, K={K} N={N}": value
            for K, values in zip(facts["K"], facts["relative_bias"], strict=True)
            for N, value in zip(facts["N"], values, strict=True)
        }
        found.append(
            figures | {f"relative bias, K={K} Newton": x for K, x in zip(facts["K"], facts["newton_bias"], strict=True)}
        )
    return found


def profiled(experiment: Experiment, row: Row, settings: running.Settings, say: running.Say) -> list[Figures]:
    """Seconds of 100 steps at the paper's N and K."""
    config = running.row_config(experiment, row, settings)
    found = profile.run(config, {"N": (0, 1, 5, 10), "K": (1, 2, 5, 10)}, settings.steps or 5, None)["rows"]
    points = {(r["N"], r["K"]): r["step_ms"] / 10 for r in found if "N" in r}
    wanted = [(N, 5) for N in (0, 1, 5, 10)] + [(5, K) for K in (1, 2, 10)]
    return [{f"seconds, N={N} K={K}": points[N, K] for N, K in wanted}]


def fisher(experiment: Experiment, row: Row, settings: running.Settings, say: running.Say) -> list[Figures]:
    """True and estimated divergence at the farthest model, and the mean relative error over all but the nearest."""
    found = []
    for seed in range(running.seeds(experiment, settings)):
        say(f"  seed {seed}")
        rows = fisher_rows(seed, **({} if settings.steps is None else {"steps": settings.steps}))
        errors = [abs(r["estimate"] - r["true"]) / r["true"] for r in rows if r["size"] > 0]
        last = rows[-1]
        found.append({"relative_error": statistics.fmean(errors), "true": last["true"], "estimate": last["estimate"]})
    return found


def theory(experiment: Experiment, row: Row, settings: running.Settings, say: running.Say) -> list[Figures]:
    """Slopes of log bias against log sqrt divergence: 1 where the theorems' bound has the right order."""
    data = running.data_for(experiment, row, settings.data)
    faces = recipe("freyface").replaced(data=str(data)).load_data().train.double()
    measure = grbm_bias if row.study == "theory-grbm" else gaussian_bias
    found = []
    for seed in range(running.seeds(experiment, settings)):
        points = measure(faces[100 * seed], BIAS_LATENT, LEVELS, seed)
        found.append({f"slope_{name}": slope(points, name) for name in ("vaes", "vages")})
    return found


def slope(points: list[Point], name: str) -> float:
    x = [0.5 * math.log(p.divergence) for p in points]
    return float(np.polyfit(x, [math.log(getattr(p, name)) for p in points], 1)[0])
