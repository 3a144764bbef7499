"""`eblvm sample`: samples of a run, by Gibbs sweeps of a GRBM or annealed Langevin dynamics of a deep model."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.autodiff import collectives
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.progress import progress
from eblvm.engine.runs.run import Run
from eblvm.engine.sampling import generator
from eblvm.engine.sampling import langevin as ld
from eblvm.engine.sampling.gibbs import gibbs, uniform_start
from eblvm.engine.training import distributed
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

KINDS = ("marginal", "joint", "given-h", "conditional", "interpolation")
STARTS = ("normal", "uniform")
CONDITIONS = 4  # values of h in a conditional grid
FRAMES = 10  # pictures along an interpolation
FRAME_STEPS = 200  # Langevin steps at temperature 1 between two of them
GIBBS_SWEEPS = 1000  # as the papers run


def sample_over_ranks(
    run: Run, model: str, count: int, steps: int | None, seed: int, kind: str | None = None, start: str | None = None
) -> Tensor:
    """`sample`, each process drawing its slice; all of them on the first, and on the others their own."""
    if count < collectives.size():
        raise UserError(f"got a count of {count} for {collectives.size()} processes, expected at least one for each")
    here = collectives.local_slice(count)
    samples = sample(run, model, here.stop - here.start, steps, seed, kind, here.start, count, start)
    return distributed.gather_to_rank0(samples)


def sample(
    run: Run,
    model: str,
    count: int,
    steps: int | None,
    seed: int,
    kind: str | None = None,
    first: int = 0,
    total: int | None = None,
    start: str | None = None,
) -> Tensor:
    """`count` samples of the first replica, [n, D] or [n, C, S, S].

    They are numbers first, first + 1, ... of the seed's: a sample is the same whichever others are drawn with it. A
    conditional grid alone depends on the number of all samples, `total` (none: these)."""
    torch.set_num_threads(run.config.running.threads)
    if start is not None and (run.config.model.generates or isinstance(run.energy, GRBM)):
        raise UserError(f"start {start!r} is of Langevin chains, which a deep energy alone has; remove --start")
    if run.config.model.generates:
        if steps is not None:
            raise UserError(f"a generator samples in one pass, got {steps} steps; remove --steps")
        return generator.generate(run, model, count, seed, kind, first)
    if not isinstance(run.energy, GRBM):
        return sample_continuous(run, model, count, steps, seed, kind, first, total or count, start)
    if kind not in (None, "marginal"):
        raise UserError(f"a GRBM is sampled from its marginal by Gibbs sweeps, got kind {kind!r}; remove --kind")
    return sample_grbm(run, model, count, GIBBS_SWEEPS if steps is None else steps, seed, first)


def sample_grbm(run: Run, model: str, count: int, sweeps: int, seed: int, first: int = 0) -> Tensor:
    """By Gibbs sampling; for images the means of p(v|h), as is usual to show."""
    theta, key = run.thetas(model)[0], Key(seed, 0)
    start = uniform_start(key, count, run.extent, first)
    with progress(sweeps, "Gibbs", "sweep") as bar:
        v, mean = gibbs(theta, key, start, sweeps, lambda count: bar.update(count) and None, first)
    return v if run.image_shape is None else mean


def sample_continuous(
    run: Run,
    model: str,
    count: int,
    steps: int | None,
    seed: int,
    kind: str | None,
    first: int,
    total: int,
    start: str | None = None,
) -> Tensor:
    """By annealed Langevin dynamics from a `start` (none: `default_start`), denoised at the end.

    marginal: p(v) of a fully visible model. joint: p(v, h). given-h: p(v|h), h the posterior means of training data.
    conditional: the same with CONDITIONS values of h, equally many of the total each. interpolation: `count` chains
    of p(v|h) that go on while h moves from one training sample's posterior mean to another's, FRAMES pictures each.
    """
    latent = run.config.method.learns_q
    kind = kind or ("given-h" if latent else "marginal")
    if kind not in KINDS:
        raise unknown("kind", kind, list(KINDS))
    if latent == (kind == "marginal"):
        expected = "one of " + ", ".join(KINDS[1:]) if latent else "marginal"
        raise UserError(f"a model trained by {run.config.method.kind!r} has no kind {kind!r}; use {expected}")
    config, theta, key, energy = run.config, run.thetas(model)[0], Key(seed, 0), run.energy
    blur = config.method.blur
    kwargs: dict[str, Any] = {
        "dtype": getattr(torch, config.running.dtype),
        "device": torch.device(config.running.device),
    }
    schedule = ld.temperatures() if steps is None else ld.temperatures(steps)
    v = started(run, start or default_start(run), key, count, first, kwargs)

    if kind == "marginal":
        score = ld.marginal_score(energy, theta)
        return ld.denoised(score, _run(score, (v,), key, schedule, first), blur)
    if kind == "joint":
        h = philox.normal(key, purpose(Purpose.SAMPLE_H), count, (latent_units(run),), first=first, **kwargs)
        score = ld.joint_score(energy, theta)
        return ld.denoised(score, _run(score, (v, h), key, schedule, first), blur)
    if kind == "conditional":
        of_each = -(-total // CONDITIONS)
        h = posterior_means(run, model, CONDITIONS, seed).repeat_interleave(of_each, 0)[first : first + count]
    else:
        h = posterior_means(run, model, count, seed, first)
    score = ld.conditional_score(energy, theta, h)
    x = _run(score, (v,), key, schedule, first)
    if kind != "interpolation":
        return ld.denoised(score, x, blur)
    goal, frames = posterior_means(run, model, count, seed + 1, first), []
    for frame in range(FRAMES):
        score = ld.conditional_score(energy, theta, torch.lerp(h, goal, frame / (FRAMES - 1)))
        x = _run(score, x, Key(seed, len(schedule) + frame * FRAME_STEPS), [1.0] * FRAME_STEPS, first)
        frames.append(ld.denoised(score, x, blur))
    return torch.stack(frames, 1).flatten(0, 1)


def default_start(run: Run) -> str:
    """Where chains start: as published for the papers' images, else over the range of the data."""
    return run.config.dataset.chain_start


def started(run: Run, start: str, key: Key, count: int, first: int, kwargs: dict[str, Any]) -> Tensor:
    """Chains first, first + 1, ...: 1/2 + N(0, 1), or uniform over the range of the data."""
    if start not in STARTS:
        raise unknown("start", start, list(STARTS))
    if start == "normal":
        return ld.normal_start(key, count, run.shape, first, **kwargs)
    low, high = value_range(run)
    return low + (high - low) * philox.uniform(key, purpose(Purpose.SAMPLE_V), count, run.shape, first=first, **kwargs)


def posterior_means(run: Run, model: str, count: int, seed: int, first: int = 0) -> Tensor:
    """Means of q(h|v) of `training_samples`."""
    return infer(run, model)(training_samples(run, count, seed, first))


def training_samples(run: Run, count: int, seed: int, first: int = 0) -> Tensor:
    """Training samples in an order of the seed's; after all of them follows another order."""
    total = len(run.dataset.train)
    rounds = range(first // total, (first + count - 1) // total + 1)
    order = torch.cat([philox.permutation(Key(seed, i), purpose(Purpose.EVAL), total) for i in rounds])
    chosen = order[first - rounds[0] * total :][:count]
    return run.dataset.floats(run.dataset.train[chosen.to(run.config.running.device)])


def latent_units(run: Run) -> int:
    assert run.posterior is not None
    return run.posterior.latent


def value_range(run: Run) -> tuple[float, float]:
    """The lowest and highest value in the training data."""
    return float(run.extent.min()), float(run.extent.max())


def infer(run: Run, model: str) -> Callable[[Tensor], Tensor]:
    """v -> the posterior mean of h."""
    assert run.posterior is not None
    posterior = run.posterior.at(run.phi(model))

    @torch.no_grad()
    def means(v: Tensor) -> Tensor:
        return torch.cat([posterior.mean(posterior.params(chunk)) for chunk in v.split(1000)])

    return means


def _run(score: ld.Score, x: ld.Position, key: Key, schedule: list[float], first: int) -> ld.Position:
    with progress(len(schedule), "Langevin", "step") as bar:
        return ld.langevin(score, x, key, schedule, on_step=lambda _: bar.update() and None, first=first)
