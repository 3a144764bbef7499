"""Test samples against uniform noise and other data: which of them the model finds likelier."""

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.evaluation import plots
from eblvm.engine.evaluation.eval_model import EVAL_SEED, EvalModel
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.image_sets import like_data
from eblvm.engine.evaluation.metrics.importance_likelihood import LogDensity
from eblvm.engine.evaluation.sample_chunks import tensor_digest
from eblvm.engine.evaluation.section import JUDGED, EvalOptions, Section, of_first
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.starts import value_range
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose


def auroc(inside: Tensor, outside: Tensor) -> float:
    """P(inside > outside) + 1/2 P(inside = outside) of scores [m] and [n]: the area under the ROC curve. By counting:
    for each inside score the outside ones below it, and half of those that equal it."""
    ordered, scores = outside.double().sort().values, inside.double().contiguous()
    below, not_above = (torch.searchsorted(ordered, scores, right=right) for right in (False, True))
    return float((below + not_above).double().mean()) / (2 * len(ordered))


def ood_sections(run: SavedRun, judged: list[EvalModel], options: EvalOptions) -> list[Section]:
    """AUROC of log p~(v) of test samples against uniform noise and against every set that was given."""

    @cache
    def inside(replica: int) -> LogDensity:
        return judged[replica].log_densities(run, run.dataset.test[:JUDGED])

    def compute(name: str, v: Tensor) -> list[Figures]:
        rows: list[Figures] = []
        for r, evaluated in enumerate(judged):
            ours, theirs = inside(r), evaluated.log_densities(run, v)
            area = auroc(ours.value, theirs.value)
            if r == 0:
                values = {"test": ours.value, name: theirs.value}
                title = f"test set against {name}: AUROC {area:.4f}{of_first(run)}"
                plots.histograms(values, evaluated.density, run.folder / f"ood-{name}.png", title)
            row: Figures = {f"auroc_{name}": area}
            if not evaluated.density.startswith("exact"):
                row[f"auroc_{name}_log_error"] = float(torch.cat([ours.standard_error, theirs.standard_error]).mean())
            rows.append(row)
        return rows

    sections = []
    for name, v in [("uniform", uniform_noise(run)), *((n, like_data(run, path)) for n, path in options.ood.items())]:
        chosen = v[:JUDGED]
        settings = {
            "density": judged[0].density,
            "inside": min(JUDGED, len(run.dataset.test)),
            "outside": len(chosen),
            "data": tensor_digest({"": chosen}),
        }
        sections.append(Section(f"ood-{name}", settings, partial(compute, name, chosen)))
    return sections


def uniform_noise(run: SavedRun) -> Tensor:
    """As many samples as the test set has, at most JUDGED, uniform over the range of the training data."""
    low, high = value_range(run)
    kwargs: dict[str, Any] = {"dtype": run.dataset.dtype, "device": run.dataset.train.device}
    count = min(JUDGED, len(run.dataset.test))
    u = philox.uniform(Key(EVAL_SEED, 0), purpose(Purpose.EVAL, 4), count, run.shape, **kwargs)
    return low + (high - low) * u
