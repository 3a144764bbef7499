"""Studies of the VaGES paper as records and pictures: `eblvm bench studies --study NAME`.

theory --data FREY         bias of VaES and VaGES against the divergence between posteriors (appendix F.4)
fisher                     the critic's Fisher divergence of a GRBM against the true one (appendix F.3)
checkerboard --runs RUN,.. densities (Fig. 2, 4) and log-likelihood over the kept checkpoints (Fig. 3) of runs with
                           replicas
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from eblvm.bench.tools import record, records
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood
from eblvm.engine.evaluation.studies.fisher_critic import fisher_divergence
from eblvm.engine.evaluation.studies.posterior_bias import gaussian_bias, grbm_bias
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.lower_level import Kl
from eblvm.engine.methods.vages import Vages
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.engine.plotting import save, styled, subplots
from eblvm.engine.recipes import recipe
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.saved import SavedRun
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

SCHEMA = "eblvm-studies/1"
DOCS = records.SOURCE / "docs"
LEVELS = [2.0**-i for i in range(1, 12)]
VISIBLE, LATENT, STEPS = 20, 10, 5000  # of the Fisher study
CRITIC_LR = 1e-3
THEORY_LATENT = 400


@styled
def theory(frey: Path) -> dict[str, Any]:
    """Bias on one Frey face with H = 400 and uniform theta, as published; q's layer is moved by normal noise of every
    level."""
    v = recipe("freyface").replaced(data=str(frey)).load_data().train[0].double()
    points_of = {
        "GRBM, KL": grbm_bias(v, THEORY_LATENT, LEVELS),
        "Gaussian model, Fisher": gaussian_bias(v, THEORY_LATENT, LEVELS),
    }
    figure, axes = subplots(1, 2, figsize=(9, 3.6))
    for ax, (title, points) in zip(axes, points_of.items(), strict=True):
        roots = [math.sqrt(p.divergence) for p in points]
        for name in ("vaes", "vages"):
            ax.loglog(roots, [getattr(p, name) for p in points], "o-", ms=3, label={"vaes": "VaES"}.get(name, "VaGES"))
        ax.set(title=title, xlabel="square root of the divergence", ylabel="bias")
        ax.legend()
    save(figure, DOCS / "vages-theory.png")
    return {title: [p._asdict() for p in points] for title, points in points_of.items()}


def fisher_rows(seed: int = 0, steps: int = STEPS) -> list[dict[str, float]]:
    """Fisher divergences on 20,000 samples of the standard GRBM, N(0, 1), of models at growing distance from it."""
    data = philox.normal(Key(3 * seed, 0), 0, 20_000, (VISIBLE,))
    energy = GRBM(VISIBLE, LATENT)
    away = energy.initial(Key(3 * seed + 1, 0))
    options = Vages(K=5, L=1, divergence=Kl(), covariance="none")
    nets = Nets(energy, Bernoulli(VISIBLE, LATENT), phi_optimizer=Adam(betas=(0.9, 0.999)))
    rows = []
    for size in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        theta = {k: size * p for k, p in away.items()}
        with torch.no_grad():
            true = 0.5 * (energy.at(theta).score(data[18_000:]) + data[18_000:]).square().sum(-1).mean()
        phi = nets.posterior.initial(Key(3 * seed + 2, 0))
        estimate = fisher_divergence(options, nets, theta, phi, data[:16_000], data[18_000:], steps=steps, lr=CRITIC_LR)
        rows.append(
            {"size": size, "true": float(true), "estimate": estimate.value, "standard_error": estimate.standard_error}
        )
    return rows


@styled
def fisher() -> dict[str, Any]:
    """The critic's estimates next to the exact values, at growing distance."""
    rows = fisher_rows()
    figure, ax = subplots(figsize=(4.5, 3.6))
    ax.plot([r["size"] for r in rows], [r["true"] for r in rows], "k-", label="exact scores")
    ax.errorbar(
        [r["size"] for r in rows],
        [r["estimate"] for r in rows],
        [r["standard_error"] for r in rows],
        fmt="o",
        label="critic with VaES",
    )
    ax.set(xlabel="distance of the model's parameters", ylabel="Fisher divergence")
    ax.legend()
    save(figure, DOCS / "vages-fisher.png")
    return {"visible": VISIBLE, "latent": LATENT, "steps": STEPS, "rows": rows}


@styled
def checkerboard(*folders: Path) -> dict[str, Any]:
    """Mean log-likelihood of the replicas at every kept checkpoint, and the density of the first replica at the end."""
    curves: dict[str, list[tuple[int, float]]] = {}
    panels = []
    for folder in folders:
        run = SavedRun.open(folder)
        title = run.config.method.kind + (f" L={run.config.get('L')}" if run.config.get("L") is not None else "")
        points = []
        for step in sorted(checkpoint.steps(folder / "checkpoints")):
            payload = checkpoint.read(checkpoint.path_of(folder / "checkpoints", step))
            thetas = replace(run, payload=payload).thetas("last")
            normalisers = [exact_log_z(run.grbm, theta).value for theta in thetas]
            pairs = zip(thetas, normalisers, strict=True)
            points.append((step, sum(log_likelihood(run.grbm, t, run.dataset.test, z) for t, z in pairs) / len(thetas)))
        panels.append((title, plots.grbm_density(run.grbm, thetas[0], normalisers[0])))
        curves[title] = points
    for name, some in (("ksd", [p for p in panels if "ksd" in p[0]]), ("sm", [p for p in panels if "ksd" not in p[0]])):
        plots.density(some, run.dataset.train, DOCS / f"checkerboard-{name}.png")
    figure, axes = subplots(1, 2, figsize=(11, 4), sharey=True)
    for title, points in curves.items():
        axes[int("ksd" not in title)].plot(*zip(*points, strict=True), label=title)
    for ax in axes:
        ax.set(xlabel="steps", ylabel="test log-likelihood (nats), mean of ten seeds")
        ax.legend(fontsize=8)
    save(figure, DOCS / "checkerboard-curves.png")
    return {"curves": curves}


def run(study: str, data: str | None, runs: Sequence[str]) -> dict[str, Any]:
    torch.set_num_threads(1)
    if study == "theory":
        if data is None:
            raise UserError("study 'theory' needs the Frey faces; give --data FILE")
        body = theory(Path(data))
    elif study == "checkerboard":
        if not runs:
            raise UserError("study 'checkerboard' needs runs that kept their checkpoints (--keep); give --runs RUN,..")
        body = checkerboard(*map(Path, runs))
    else:
        body = fisher()
    return record.make(SCHEMA, f"study-{study}", f"eblvm bench studies --study {study}", "cpu", body)
