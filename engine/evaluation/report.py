"""`eblvm report`: a run in one table and one picture, from what it has written so far."""

from pathlib import Path
from typing import Any

from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import plots
from eblvm.engine.optim import replicas
from eblvm.engine.plotting import save
from eblvm.engine.runs.folder import read_config
from eblvm.engine.runs.stats import read_eval, read_rows


def report(folder: Path) -> dict[str, Any]:
    """The newest value of every logged quantity, the evaluation if there is one; writes curves.png."""
    config = read_config(folder)
    path = folder / "stats.jsonl"
    rows = read_rows(path) if path.exists() else []
    if not rows:
        raise UserError(f"{folder} has logged nothing yet; let 'eblvm train' run longer")
    labels = config.optimisation.rate_labels()
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "step":
                values = value if isinstance(value, list) else [value]
                for label, of_rate in replicas.by_rate(values, labels if isinstance(value, list) else [""]).items():
                    x, y = series.setdefault(replicas.labelled(name, label), ([], []))
                    x.append(row["step"])
                    y.append(sum(of_rate) / len(of_rate))
    save(plots.curves(series), folder / "curves.png")
    evaluation = read_eval(folder / "eval.json")
    return {
        "recipe": config.recipe,
        "method": config.method.kind,
        "step": rows[-1]["step"],
        "steps": config.optimisation.steps,
        "last": {name: y[-1] for name, (_, y) in series.items()},
        "eval": evaluation and evaluation["mean"],
    }
