"""The sections of an evaluation: what each computes, and the settings that its figures depend on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from eblvm.engine import sampling
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import deep, grbm, plots
from eblvm.engine.evaluation import kept_samples as drawn
from eblvm.engine.evaluation.energies import ENERGY_SAMPLES, energies
from eblvm.engine.evaluation.eval_model import EVAL_SEED, EvalModel, eval_models
from eblvm.engine.evaluation.figures import Figures
from eblvm.engine.evaluation.fingerprint import fingerprint
from eblvm.engine.evaluation.image_sets import as_bytes, as_images, read_images
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.evaluation.metrics.grid_likelihood import GridLikelihood, grid_log_likelihood, log_marginal_of
from eblvm.engine.evaluation.metrics.image_distances import Images, cached_images, image_distances
from eblvm.engine.evaluation.metrics.importance import LogDensity
from eblvm.engine.evaluation.metrics.inception import load as load_inception
from eblvm.engine.evaluation.metrics.neighbours import neighbours
from eblvm.engine.evaluation.metrics.ood import auroc
from eblvm.engine.evaluation.metrics.probes import PROBES, tsne
from eblvm.engine.methods.score_matching import ScoreMatchingObjective
from eblvm.engine.models.base import image_shape
from eblvm.engine.nets.grbm import MAX_ENUMERATED_H
from eblvm.engine.nets.posteriors import Gaussian
from eblvm.engine.runs.run import Run
from eblvm.engine.sampling.starts import value_range
from eblvm.engine.training import replicas
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

FITTED = 10_000  # training samples of the classifiers
JUDGED = 2000  # samples of each set that out-of-distribution detection looks at, and of the t-SNE picture
GRID_SAMPLES = 64  # of h, where it is not integrated on nodes
SHOWN, NEAREST = 100, 5  # samples in pictures; training neighbours of each


@dataclass(frozen=True)
class Options:
    """What `eblvm eval` was asked for; the defaults need neither files nor minutes of sampling."""

    chains: int = 2000
    temperatures: int = 2000
    force_ais: bool = False
    draw: int | None = None  # samples for pictures and neighbours; none: 100, of a deep model only beside a FID
    fid: int | None = None  # samples of FID and KID
    samples: Path | None = None  # take them from here
    reference: int | None = None  # training images to compare with; none: all
    inception: Path | None = None
    ood: Mapping[str, Path] = field(default_factory=dict)
    kind: str | None = None  # of sample, and the steps and the seed of the sampler
    steps: int | None = None
    seed: int = 0
    again: bool = False


class Section(NamedTuple):
    name: str
    settings: dict[str, Any]  # plain JSON
    compute: Callable[[], list[Figures]]  # by replica, or of the first one only


def sections_of(run: Run, model: str, weights: str, options: Options) -> list[Section]:
    """All that this run can be judged by and was asked for, the quick sections first."""
    judged = eval_models(run, model)
    found = [_likelihood(run, model, options)] if run.is_grbm else []
    if run.config.model.points and run.shape == (2,):
        found.append(Section("likelihood", {"log_z": "grid"}, lambda: [grid(run, model)]))
    if isinstance(run.update.objective, ScoreMatchingObjective) and not run.is_grbm:
        found.append(_losses(run, model))
    if run.dataset.train_labels is not None and all(s.posterior_mean for s in judged):
        found.append(
            Section(
                "classification", {"fitted": FITTED}, lambda: [classification(run, s, r) for r, s in enumerate(judged)]
            )
        )
    found.append(Section("energies", {"samples": ENERGY_SAMPLES}, lambda: energies(run, judged)))
    if all(s.reconstruct for s in judged):
        found.append(Section("reconstruction", {}, lambda: [reconstruction(run, s, r) for r, s in enumerate(judged)]))
    found += _ood(run, judged, options)
    source = source_of(run, model, weights, options)
    given = None if options.samples is None else like_data(run, options.samples)
    shown = options.draw if options.draw is not None else SHOWN if sampling.sampler_of(run).quick or options.fid else 0
    if shown:
        found.append(_samples(run, source, shown, given))
    if options.fid:
        found.append(_fid(run, source, options, given))
    return found


def weights_of(run: Run, model: str) -> str:
    """The hash of theta, of all replicas, of phi and of what nets hold beside them."""
    weights = {f"{r}.{k}": p for r, theta in enumerate(run.thetas(model)) for k, p in theta.items()}
    weights |= {f"phi.{k}": p for k, p in run.phi(model).items()}
    return fingerprint(weights | {f"buffers.{k}": p for k, p in run.buffers(model).items()})


def source_of(run: Run, model: str, weights: str, options: Options) -> drawn.Source:
    return drawn.Source(run, model, weights, options.kind, options.steps, options.seed)


def _likelihood(run: Run, model: str, options: Options) -> Section:
    exact = run.grbm.latent <= MAX_ENUMERATED_H and not options.force_ais
    how = "exact" if exact else f"AIS, {options.chains} chains x {options.temperatures} temperatures"
    chains, temperatures = (0, 0) if exact else (options.chains, options.temperatures)
    return Section("likelihood", {"log_z": how}, lambda: grbm.rows(run, model, chains, temperatures))


def grid_density(run: Run, model: str) -> tuple[GridLikelihood, plots.Density]:
    """Log-likelihood of a model of points by a grid over the plane, and its density."""
    theta, phi, posterior = run.thetas(model)[0], run.phi(model), run.posterior
    assert isinstance(posterior, Gaussian)
    found = grid_log_likelihood(run.energy, theta, run.dataset.test, posterior, phi)
    log_marginal = log_marginal_of(run.energy, theta, posterior, phi, GRID_SAMPLES, Key(EVAL_SEED, 0))
    return found, lambda v: torch.exp(log_marginal(v).value - found.log_z)


def grid(run: Run, model: str) -> Figures:
    """The figures of `grid_density`, and a picture."""
    found, density = grid_density(run, model)
    title = f"{run.config.method.kind}, {found.log_likelihood:.3f} nats"
    plots.density([(title, density)], run.dataset.train, run.folder / "density.png")
    return {
        "test_log_likelihood": found.log_likelihood,
        "test_log_likelihood_error": found.standard_error,
        "log_z": found.log_z,
    }


def _losses(run: Run, model: str) -> Section:
    objective = run.update.objective
    return Section("losses", {"tested": deep.TESTED}, lambda: [{**deep.losses(run, model, objective)}])


def classification(run: Run, evaluated: EvalModel, replica: int = 0) -> Figures:
    """Classifiers fitted on the training split, their accuracy on the test split: on posterior means and on pixels."""
    data = run.dataset
    assert data.train_labels is not None
    assert data.test_labels is not None
    train, labels = data.train[:FITTED], data.train_labels[:FITTED]
    means = [evaluated.of_all("posterior_mean", run, v) for v in (train, data.test)]
    if replica == 0:
        title = f"t-SNE of posterior means of test samples{_which(run)}"
        plots.embedding(tsne(means[1][:JUDGED]), data.test_labels[:JUDGED], run.folder / "tsne.png", title)
    pixels = [data.floats(v) for v in (train, data.test)]
    found: Figures = {}
    for probe, accuracy in PROBES.items():
        for name, (fitted, tested) in (("posterior", means), ("pixels", pixels)):
            found[f"{probe}_{name}_accuracy"] = accuracy(fitted, labels, tested, data.test_labels)
    return found


def reconstruction(run: Run, evaluated: EvalModel, replica: int = 0) -> Figures:
    """Root mean square error of test samples' reconstructions, over all their entries; beside it that of the mean."""
    test = run.dataset.floats(run.dataset.test)
    found = evaluated.of_all("reconstruct", run, run.dataset.test)
    if has_images(run) and replica == 0:
        pairs = torch.stack([as_images(v[:SHOWN], run.dataset.image_shape) for v in (test, found)], 1).flatten(0, 1)
        title = f"pairs: a test image (left) and its reconstruction (right){_which(run)}"
        plots.image_grid(pairs[:64], run.folder / "reconstruction.png", columns=16, title=title)
    mean = run.dataset.floats(run.dataset.train).mean(0)
    return {"reconstruction_rmse": rmse(found, test), "reconstruction_rmse_of_mean": rmse(mean, test)}


def _which(run: Run) -> str:
    """For the titles of pictures, which are of the first replica."""
    return f"; {replicas.names(run.config.optimisation)[0]}" if run.config.replicated else ""


def rmse(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted.double()).square().mean().sqrt())


def _ood(run: Run, judged: list[EvalModel], options: Options) -> list[Section]:
    """AUROC of log p~(v) of test samples against uniform noise and against every set that was given."""

    @cache
    def inside(replica: int) -> LogDensity:
        return judged[replica].log_densities(run, run.dataset.test[:JUDGED])

    def compute(name: str, v: Tensor) -> list[Figures]:
        rows: list[Figures] = []
        for r, evaluated in enumerate(judged):
            ours, theirs = inside(r), evaluated.log_densities(run, v)
            if r == 0:
                values = {"test": ours.value, name: theirs.value}
                title = f"test set against {name}: AUROC {auroc(ours.value, theirs.value):.4f}{_which(run)}"
                plots.histograms(values, evaluated.density, run.folder / f"ood-{name}.png", title)
            row: Figures = {f"auroc_{name}": auroc(ours.value, theirs.value)}
            if not evaluated.density.startswith("exact"):
                row[f"auroc_{name}_log_error"] = float(torch.cat([ours.standard_error, theirs.standard_error]).mean())
            rows.append(row)
        return rows

    found = []
    for name, v in [("uniform", uniform_noise(run)), *((n, like_data(run, path)) for n, path in options.ood.items())]:
        chosen = v[:JUDGED]
        settings = {
            "density": judged[0].density,
            "inside": min(JUDGED, len(run.dataset.test)),
            "outside": len(chosen),
            "data": fingerprint({"": chosen}),
        }
        found.append(Section(f"ood-{name}", settings, partial(compute, name, chosen)))
    return found


def uniform_noise(run: Run) -> Tensor:
    """As many samples as the test set has, at most JUDGED, uniform over the range of the training data."""
    train = run.dataset.train
    low, high = value_range(run)
    kwargs: dict[str, Any] = {"dtype": run.dataset.dtype, "device": train.device}
    count = min(JUDGED, len(run.dataset.test))
    u = philox.uniform(Key(EVAL_SEED, 0), purpose(Purpose.EVAL, 4), count, run.shape, **kwargs)
    return low + (high - low) * u


def like_data(run: Run, path: Path) -> Tensor:
    """Images of `path` in the shape of this run's samples."""
    flat = run.dataset.image_shape
    if flat is None and len(run.shape) != 3:
        raise UserError(f"got images {path}, but {run.folder} is a run on points")
    images = read_images(path, (1, *flat) if flat else image_shape(run.shape))
    device = run.dataset.train.device
    return images.flatten(1).to(device, run.dataset.dtype) / 255 if flat else images.to(device)


def has_images(run: Run) -> bool:
    return len(run.shape) == 3 or run.dataset.image_shape is not None


def _samples(run: Run, source: drawn.Source, count: int, given: Tensor | None) -> Section:
    """A picture of samples; of images also their nearest training images, beside those of as many test images."""
    flat = run.dataset.image_shape

    def compute() -> list[Figures]:
        v = drawn.first(source, count) if given is None else given[:count].cpu()
        plots.samples(run.dataset.floats(v[:SHOWN]), flat, run.folder / "samples.png")
        mixed = source.sampler.mixing(source.run, source.model, source.seed) if given is None else None
        mixed_figures: Figures = {f"samples_{k}": v for k, v in mixed.figures().items()} if mixed else {}
        if not has_images(run):
            return [mixed_figures]
        # In bytes, so that a training image that is remembered has distance 0.
        samples, train, test = (as_bytes(as_images(x.cpu(), flat)) for x in (v, run.dataset.train, run.dataset.test))
        near = neighbours(samples, train, NEAREST, 255)
        rows = torch.cat([samples[:10, None], train[near.index[:10]]], 1).flatten(0, 1)
        title = f"in each row a sample (left) and its {NEAREST} nearest training images{_which(run)}"
        plots.image_grid(rows / 255, run.folder / "neighbours.png", NEAREST + 1, title)
        unseen = neighbours(test[:count], train, 1, 255)
        return [
            mixed_figures
            | {
                "neighbour_distance_samples": float(near.distance[:, 0].mean()),
                "neighbour_distance_test": float(unseen.distance.mean()),
            }
        ]

    return Section("samples", {"count": count, **_described(source, given)}, compute)


def _described(source: drawn.Source, given: Tensor | None) -> dict[str, Any]:
    return source.settings if given is None else {"given": len(given), "data": fingerprint({"": given})}


def _fid(run: Run, source: drawn.Source, options: Options, given: Tensor | None) -> Section:
    samples, reference, net = fid_inputs(run, source, options, given)
    settings = {
        "samples": samples.count,
        "reference": f"{reference.count} training images",
        "inception": net.name,
        "inception_weights": net.digest,
        "inception_score": "below" if net.has_logits else f"none, {net.name} has no logits: install torch-fidelity",
        **_described(source, given),
    }
    return Section("fid", settings, lambda: [image_distances(samples, reference, net, options.seed)])


def fid_inputs(
    run: Run, source: drawn.Source, options: Options, given: Tensor | None = None
) -> tuple[Images, Images, Extractor]:
    """The samples, drawn or given, the training images that they are compared with, and the Inception."""
    assert options.fid is not None
    if not has_images(run):
        raise UserError(f"FID is a distance between images, {run.folder} is a run on points; remove --fid")
    flat = run.dataset.image_shape
    if given is not None and len(given) < options.fid:
        raise UserError(f"{options.samples} holds {len(given)} images, got --fid {options.fid}; ask for fewer")
    samples = drawn.images(source, options.fid) if given is None else cached_images(as_images(given, flat), options.fid)
    reference = cached_images(as_images(run.dataset.train, flat), options.reference)
    return samples, reference, load_inception(options.inception, run.config.running.device)
