"""The figures of docs/newton.md: a step's time on Frey face, and what runs reach by each way to their gradient."""

from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal
from itertools import pairwise
from typing import Any

from eblvm.bench.measurements import newton_cost, newton_training
from eblvm.bench.pages.templates import Notes
from eblvm.bench.tools.records import Record
from eblvm.engine import tables

STEPS = {
    "N=5 K=5": "N=5, K=5",
    "N=0 K=5": "N=0, K=5",
    "best_response=newton K=5": "Newton, K=5",
    "best_response=newton K=1": "Newton, K=1",
    "method=dsm": "DSM",
}
Format = Callable[[float], str]


def rounded(loss: float) -> str:
    """A loss to three digits, as 481,000."""
    return f"{float(f'{loss:.3g}'):,.0f}"


def percent(accuracy: float) -> str:
    """Of 2,000 test images: halves of a tenth are exact, and rounded up."""
    return str((100 * Decimal(str(accuracy))).quantize(Decimal("0.1"), ROUND_HALF_UP))


LIKELIHOODS: dict[str, tuple[str, Format]] = {
    "log_likelihood": ("test log-likelihood", "{:.3f}".format),
    "test_loss": ("test loss", "{:.0f}".format),
    "test_fisher_of_q": ("D_F(q&#124;&#124;p)", "{:.2f}".format),
    "spread": ("spread", "{:.3f}".format),
}
ACCURACIES: dict[str, tuple[str, Format]] = {
    "test_loss": ("test loss", rounded),
    "test_fisher_of_q": ("D_F(q&#124;&#124;p)", "{:.0f}".format),
    "spread": ("spread", "{:.2f}".format),
    "svm": ("SVM, means of q", percent),
    "svm_of_response": ("SVM, means of p(h&#124;v)", percent),
}


def step_figures(record: Record, notes: Notes) -> dict[str, str]:
    rows = [[STEPS[row["case"]], f"{row['ms']:.1f}", f"{row['to_unrolled']:.2f}"] for row in record["rows"]]
    return {"table": tables.markdown(["step", "ms", "of N=5's"], rows)}


def training_figures(record: Record, notes: Notes) -> dict[str, str]:
    """A row per run: accuracies if its data has labels, likelihoods of points; the value of each replica."""
    labelled = record["rows"][0]["svm"] is not None
    columns = ACCURACIES if labelled else LIKELIHOODS
    rows = [
        [way(row), *([lower_level(row)] if labelled else []), *cells(row, columns.items())] for row in record["rows"]
    ]
    header = ["way", *(["lower level"] if labelled else []), *(title for title, _ in columns.values())]
    return {"table": tables.markdown(header, rows)}


def cells(row: dict[str, Any], columns: Iterable[tuple[str, tuple[str, Format]]]) -> list[str]:
    return [", ".join(map(form, row[name])) for name, (_, form) in columns]


def way(row: dict[str, Any]) -> str:
    words = row["command"].split()
    given = dict(pairwise(words))
    if given.get("--method", "").startswith("vages"):
        return f"VaGES, L={given.get('--L', 2)}"
    return "Newton" if given.get("--best-response") == "newton" else f"N={given.get('--N', 0)}"


def lower_level(row: dict[str, Any]) -> str:
    return "KL, exact" if "--divergence kl-exact" in row["command"] else "KL, sampled"


FIGURES = {newton_cost.FREYFACE_SCHEMA: step_figures, newton_training.SCHEMA: training_figures}
