"""What posterior means are worth to a linear SVM over training.

`python -m eblvm.bench.suites.posterior_features RUN...` makes the record and the picture.

Checkpoints that a deep EBLVM kept are judged on the same images. Beside q's means stand what they are made of,

    features   f, which the energy reads of v: all that the means can know
    posterior  the mean of p(h|v) itself, by Newton steps on the means of q
    means      of q

each standardised, as the scale of h is arbitrary; `raw` are q's means as they are, the papers' protocol. A loss between
features and posterior is the energy's, one between posterior and means is q's.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eblvm.bench.tools import record
from eblvm.engine import recipes, tables
from eblvm.engine.errors import UserError
from eblvm.engine.methods.newton import Newton
from eblvm.engine.methods.newton_step import best_response
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.plotting import save, styled, subplots
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.run import SavedRun

SCHEMA = "eblvm-posterior-features/1"
FITTED, JUDGED = 5000, 2000  # training and test images
RESPONSE = Newton(response_steps=1)
POINTS = 4  # checkpoints of a run
DOCUMENT = record.SOURCE / "docs" / "mnist-posterior-means.png"
UNSHOWN = ("checkpoint_every", "log_every", "keep", "validations")
NOTE = """\
## MNIST: posterior means under a linear SVM

Accuracies in percent, of features standardised on the training images; "raw" has q's means as they are. The means of
p(h|v) are q's after Newton steps on them. Where they fall short of the features, the energy hides from h what it knows
of v: their spread over images is then small beside the std of q. Where q's means fall short of them, q lags behind.

![accuracy over steps](mnist-posterior-means.png)
"""
NAMES = {"means": "means of q", "posterior": "means of p(h|v)", "features": "features f"}


def accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, standardised: bool = True
) -> float:
    """Of scikit-learn's LinearSVC in its primal form, which converges where the default stops at 1,000 iterations."""
    from sklearn.svm import LinearSVC

    if standardised:
        mean, std = train.mean(0), train.std(0).clamp_min(1e-8)
        train, test = (train - mean) / std, (test - mean) / std
    x_train, x_test = (v.flatten(1).double().numpy() for v in (train, test))
    fitted = LinearSVC(random_state=0, dual=False, tol=1e-3).fit(x_train, train_labels.numpy())
    return float(fitted.score(x_test, test_labels.numpy()))


def parts(run: SavedRun, images: Tensor) -> dict[str, Tensor]:
    """features, means of q and of p(h|v), and the stds of q, each [n, H]."""
    theta, phi, posterior = run.thetas("last")[0], run.phi("last"), run.posterior
    assert isinstance(posterior, Gaussian)
    found: dict[str, list[Tensor]] = {"features": [], "means": [], "posterior": [], "std": []}
    for chunk in images.split(500):
        v = run.dataset.floats(chunk)
        with torch.no_grad():
            f, p = run.energy.at(theta).features(v), posterior.at(phi).params(v)
        noise = torch.zeros(RESPONSE.response_samples, *p[0].shape)  # unread: the head has closed expectations
        response = best_response(RESPONSE, run.energy, posterior, theta, f, p, noise)
        for name, x in zip(found, (f, p[0], response.p[0].detach(), p[1].exp()), strict=True):
            found[name].append(x)
    return {name: torch.cat(chunks) for name, chunks in found.items()}


def judged(run: SavedRun) -> dict[str, float]:
    data = run.dataset
    assert data.train_labels is not None
    assert data.test_labels is not None
    train, test = parts(run, data.train[:FITTED]), parts(run, data.test[:JUDGED])
    labels = data.train_labels[:FITTED], data.test_labels[:JUDGED]
    row = {name: accuracy(train[name], labels[0], test[name], labels[1]) for name in NAMES}
    row["raw"] = accuracy(train["means"], labels[0], test["means"], labels[1], standardised=False)
    means, posterior = (test[name] - test[name].mean(0) for name in ("means", "posterior"))
    row["correlation"] = float(np.corrcoef(means.flatten().numpy(), posterior.flatten().numpy())[0, 1])
    row["spread_of_means"] = float(means.std(0).mean())
    row["spread_of_posterior"] = float(posterior.std(0).mean())
    row["std_of_q"] = float(test["std"].mean())
    return row


def curve(folder: Path) -> dict[str, Any]:
    """The command of a run, and what its kept checkpoints give."""
    run = SavedRun.open(folder)
    rows = []
    kept = np.array(sorted(checkpoint.steps(folder / "checkpoints")))
    places = np.linspace(0, len(kept) - 1, min(POINTS, len(kept))).round().astype(int)
    for step in kept[places].tolist():
        payload = checkpoint.read(checkpoint.path_of(folder / "checkpoints", step))
        rows.append({"step": step, **judged(replace(run, payload=payload))})
        print(rows[-1], flush=True)
    return {
        "label": folder.name,
        "command": " ".join(["eblvm train", run.config.recipe, *recipes.arguments(run.config, UNSHOWN)]),
        "rows": rows,
    }


def pixels(run: SavedRun) -> dict[str, float]:
    data = run.dataset
    assert data.train_labels is not None
    assert data.test_labels is not None
    v = [data.floats(x).flatten(1) for x in (data.train[:FITTED], data.test[:JUDGED])]
    labels = data.train_labels[:FITTED], data.test_labels[:JUDGED]
    return {
        name: accuracy(v[0], labels[0], v[1], labels[1], standardised)
        for name, standardised in (("raw", False), ("standardised", True))
    }


@styled
def plot(body: dict[str, Any], path: Path) -> None:
    curves = body["curves"]
    figure, axes = subplots(1, len(curves), figsize=(4.2 * len(curves), 3.8), sharey=True)
    for ax, found in zip(np.atleast_1d(axes), curves, strict=True):
        steps = [r["step"] for r in found["rows"]]
        for name, title in NAMES.items():
            ax.plot(steps, [100 * r[name] for r in found["rows"]], "o-", ms=3, label=title)
        ax.axhline(100 * max(body["pixels"].values()), color="black", ls=":", label="pixels")
        ax.set(title=found["label"], xlabel="steps")
        ax.grid(alpha=0.3)
    np.atleast_1d(axes)[0].set_ylabel("accuracy of a linear SVM (%)")
    np.atleast_1d(axes)[0].legend(fontsize=8)
    save(figure, path, of=body)


def render(found: dict[str, Any]) -> str:
    """A section of docs/results.md: the first and the last checkpoint of every run."""
    header = ["run", "step", *NAMES.values(), "q's means, raw", "spread of p's means / std of q", "correlation"]
    rows = []
    for line in found["curves"]:
        for row in (line["rows"][0], line["rows"][-1]):
            figures = [f"{100 * row[name]:.1f}" for name in (*NAMES, "raw")]
            ratio = f"{row['spread_of_posterior'] / row['std_of_q']:.3f}"
            rows.append([line["label"], row["step"], *figures, ratio, f"{row['correlation']:.2f}"])
    commands = [f"- {line['label']}: `{line['command']}`" for line in found["curves"]]
    pixels = " and ".join(f"{100 * x:.1f} % {name}" for name, x in found["pixels"].items())
    origin = f"Recorded {found['date']} at commit {found['commit']}; pixels: {pixels}."
    return "\n".join([NOTE, origin, "", tables.markdown(header, rows), "", *commands, ""])


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    try:
        if not arguments:
            raise UserError("give the folders of runs that kept their checkpoints (--keep)")
        folders = [Path(a) for a in arguments]
        body = {"fitted": FITTED, "judged": JUDGED, "pixels": pixels(SavedRun.open(folders[0])),
                "curves": [curve(folder) for folder in folders]}  # fmt: skip
        plot(body, DOCUMENT)
        said = "python -m eblvm.bench.suites.posterior_features RUN..."
        made = record.make(SCHEMA, "study-posterior-features", said, "cpu", body)
        print(f"wrote {record.write(made, record.RECORDS).name} and {DOCUMENT.name}")
    except UserError as error:
        print(f"eblvm.bench.suites.posterior_features: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
