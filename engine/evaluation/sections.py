"""The sections of an evaluation, and the settings that the figures of each depend on."""

from eblvm.engine import sampling
from eblvm.engine.evaluation import classification, grbm_likelihood, grid_density, losses, reconstruction
from eblvm.engine.evaluation.energies import ENERGY_SAMPLES, energies
from eblvm.engine.evaluation.eval_model import eval_models
from eblvm.engine.evaluation.image_sets import like_data
from eblvm.engine.evaluation.kept_samples import Source
from eblvm.engine.evaluation.out_of_distribution import ood_sections
from eblvm.engine.evaluation.sample_chunks import tensor_digest
from eblvm.engine.evaluation.sample_sections import fid_section, samples_section
from eblvm.engine.evaluation.section import SHOWN, EvalOptions, Section
from eblvm.engine.nets.grbm import MAX_ENUMERATED_H
from eblvm.engine.runs.saved import SavedRun


def sections_of(run: SavedRun, model: str, weights: str, options: EvalOptions) -> list[Section]:
    """The sections that suit this run and that were asked for, the quick ones first."""
    judged = eval_models(run, model)
    sections = [_likelihood(run, model, options)] if run.is_grbm else []
    if run.config.model.points and run.shape == (2,):
        sections.append(Section("likelihood", {"log_z": "grid"}, lambda: [grid_density.figures(run, model)]))
    if run.config.method.diagnoses and not run.is_grbm:
        sections.append(Section("losses", {"tested": losses.TESTED}, lambda: [{**losses.losses(run, model)}]))
    if run.dataset.train_labels is not None and all(s.posterior_mean for s in judged):
        settings = {"fitted": classification.FITTED}
        sections.append(Section("classification", settings, lambda: classification.figures(run, judged)))
    sections.append(Section("energies", {"samples": ENERGY_SAMPLES}, lambda: energies(run, judged)))
    if all(s.reconstruct for s in judged):
        sections.append(Section("reconstruction", {}, lambda: reconstruction.figures(run, judged)))
    sections += ood_sections(run, judged, options)
    source = source_of(run, model, weights, options)
    given = None if options.samples is None else like_data(run, options.samples)
    shown = options.draw if options.draw is not None else SHOWN if sampling.sampler_of(run).quick or options.fid else 0
    if shown:
        sections.append(samples_section(run, source, shown, given))
    if options.fid:
        sections.append(fid_section(run, source, options, given))
    return sections


def weights_of(run: SavedRun, model: str) -> str:
    """The hash of theta, of all replicas, of phi and of the nets' buffers."""
    weights = {f"{r}.{k}": p for r, theta in enumerate(run.thetas(model)) for k, p in theta.items()}
    weights |= {f"phi.{k}": p for k, p in run.phi(model).items()}
    return tensor_digest(weights | {f"buffers.{k}": p for k, p in run.buffers(model).items()})


def source_of(run: SavedRun, model: str, weights: str, options: EvalOptions) -> Source:
    return Source(run, model, weights, options.kind, options.steps, options.seed)


def _likelihood(run: SavedRun, model: str, options: EvalOptions) -> Section:
    exact = run.grbm.latent <= MAX_ENUMERATED_H and not options.ais
    how = "exact" if exact else f"AIS, {options.chains} chains x {options.temperatures} temperatures"
    chains, temperatures = (0, 0) if exact else (options.chains, options.temperatures)
    return Section("likelihood", {"log_z": how}, lambda: grbm_likelihood.rows(run, model, chains, temperatures))
