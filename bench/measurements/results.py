"""`eblvm bench results --name NAME --runs RUN,..`: the eval.json of run folders, collected into a record."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eblvm.bench.tools import record
from eblvm.bench.tools.columns import Table
from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.runs.stats import read_rows

SCHEMA = "eblvm-results-1"


def command(config: Config) -> str:
    """The `eblvm train` command of a configuration: the recipe and every option that changes its figures."""
    return " ".join(
        ["eblvm train", config.recipe, *recipes.arguments(config, ("checkpoint_every", "log_every", "keep"))]
    )


def row(folder: Path) -> dict[str, Any]:
    path = folder / "eval.json"
    if not path.is_file():
        raise UserError(f"{folder} has no eval.json; run 'eblvm eval {folder}' first")
    facts = json.loads(path.read_text())
    config = Config.from_json(facts["config"])
    return {
        "command": command(config),
        "model": facts["model"],
        "step": facts["step"],
        "likelihood": facts["likelihood"],
        "replicas": len(facts["replicas"]),
        "mean": facts["mean"],
        "deviation": facts["deviation"],
        "by_replica": [r["test_log_likelihood"] for r in facts["replicas"] if "test_log_likelihood" in r],
        "curves": curves(folder) if not config.model.conditionals else {},
    }


def curves(folder: Path) -> dict[str, dict[str, float]]:
    """Of the upper and the lower loss: the highest logged value, and the mean of the last tenth of them."""
    rows = read_rows(folder / "stats.jsonl")
    by_loss = {}
    for name in ("loss", "lower"):
        values = [r[name] for r in rows if name in r]
        by_loss[name] = {"highest": max(values), "last": statistics.fmean(values[-max(1, len(values) // 10) :])}
    return by_loss


def run(name: str, runs: Sequence[str | Path]) -> dict[str, Any]:
    if not name or not runs:
        raise UserError("'eblvm bench results' needs a name and the folders of evaluated runs; give --name and --runs")
    body = {"recipe": name, "rows": [row(Path(folder)) for folder in runs]}
    return record.make(SCHEMA, f"results-{name}", f"eblvm bench results --name {name} --runs RUN,..", "cpu", body)


def table(result: dict[str, Any]) -> Table:
    """Log-likelihood and Fisher of every model; of deep ones a row per figure."""
    deep = any(r["curves"] for r in result["rows"])
    header = ["command", "model", "figure", "value"] if deep else ["command", "model", "log-likelihood", "Fisher"]
    rows = []
    for r in result["rows"]:
        if deep:
            rows += [[f"`{r['command']}`", r["model"], *figure] for figure in deep_figures(r)]
            continue
        mean, deviation, many = r["mean"], r["deviation"], r["replicas"] > 1
        if isinstance(mean["test_log_likelihood"], str):
            rows.append([f"`{r['command']}`", r["model"], "not known", f"{mean['test_fisher']:.2f}"])
            continue
        error = mean["log_z_standard_error"]
        spread = f" ± {deviation['test_log_likelihood']:.4f}" if many else f" (s.e. {error:.2f})" if error else ""
        digits = 2 if error else 4
        likelihood = f"{mean['test_log_likelihood']:.{digits}f}{spread}"
        if "test_log_likelihood_reverse" in mean:
            likelihood = f"{mean['test_log_likelihood_reverse']:.{digits}f} to {likelihood}"
        fisher = f"{mean['test_fisher']:.{digits}f}" + (f" ± {deviation['test_fisher']:.4f}" if many else "")
        rows.append([f"`{r['command']}`", r["model"], likelihood, fisher])
    return header, rows


def deep_figures(row: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values of a deep run's figures."""
    named = {"loss": "upper loss", "lower": "lower loss" if "--method bidvl" in row["command"] else "D_F(q‖p)"}
    figures = [
        (f"{named[name]}: highest, mean of the last tenth", f"{c['highest']:.4g}, {c['last']:.4g}")
        for name, c in row["curves"].items()
    ]
    return figures + [(name.replace("_", " "), f"{value:.4g}") for name, value in row["mean"].items()]
