"""Pictures: densities of 2-D models, grids of samples, curves, histograms, embeddings, figures of several runs."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import torch
from matplotlib import colormaps
from torch import Tensor

from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.plotting import Picture, save, styled, subplots, write
from eblvm.engine.runs.stats import name_of
from eblvm.engine.types import Params

SMOOTHED = 40  # points above which a curve is smoothed
DENSITY_SIZE = 120  # points of a density per axis
BINS = 80  # of a histogram
FLOOR = 1e-9  # what a logarithmic plot shows of zero
Density = Callable[[Tensor], Tensor]  # of points [n, 2], [n]


def grbm_density(energy: GRBM, theta: Params, log_z: float) -> Density:
    """exp(-F(v)) / Z."""
    energy = energy.at({k: p.cpu().float() for k, p in theta.items()})

    @torch.no_grad()
    def density(v: Tensor) -> Tensor:
        return torch.exp(-energy.free_energy(v) - log_z)

    return density


def density_grid(data: Tensor) -> tuple[Tensor, float, float]:
    """The points [n, 2] at which `density` asks its models, and the range of both axes: the data's and a margin."""
    low, high = float(data.min()), float(data.max())
    low, high = low - 0.15 * (high - low), high + 0.15 * (high - low)
    axis = torch.linspace(low, high, DENSITY_SIZE)
    return torch.stack(torch.meshgrid(axis, axis, indexing="xy"), -1).view(-1, 2), low, high


@styled
def density(panels: Sequence[tuple[str, Density]], data: Tensor, path: Path) -> None:
    """The data's histogram and the densities of models, titled, over the data's range and a margin, on one scale."""
    data = data.cpu().float()
    grid, low, high = density_grid(data)
    histogram = torch.histogramdd(data, [40, 40], range=[low, high] * 2, density=True).hist
    top = 1.2 * float(histogram[histogram > 0].quantile(0.9))
    figure, axes = subplots(1, len(panels) + 1, figsize=(3.2 * (len(panels) + 1) + 0.6, 3.7), sharey=True)
    axes[0].hist2d(*data.T.tolist(), bins=80, range=[[low, high]] * 2, density=True, vmin=0, vmax=top)
    axes[0].set_title(f"data ({len(data):,} samples)")
    for ax, (title, of) in zip(axes[1:], panels, strict=True):
        values = of(grid).view(DENSITY_SIZE, DENSITY_SIZE).numpy()
        shown = ax.imshow(values, extent=(low, high) * 2, origin="lower", vmin=0, vmax=top)
        ax.set_title(title)
    for ax in axes:
        ax.set(aspect="equal", xlabel="$v_1$")
        ax.tick_params(labelsize=7)
    axes[0].set_ylabel("$v_2$")
    figure.colorbar(shown, ax=axes, shrink=0.8, label="density")
    save(figure, path)


def samples(v: Tensor, image_shape: tuple[int, int] | None, path: Path, columns: int = 10) -> None:
    """Samples [n, D] as a grid of images or as points, images [n, C, S, S] as a grid."""
    if v.dim() == 4:
        image_grid(v, path, columns)
    elif image_shape is not None:
        image_grid(v.view(len(v), 1, *image_shape), path, columns)
    else:
        save(scatter(v), path)


@styled
def image_grid(images: Tensor, path: Path, columns: int = 10, title: str = "") -> None:
    """Images [n, C, height, width] in [0, 1] with one or three channels, `columns` a row, enlarged to be seen."""
    picture = grid(images, columns)
    if not title:
        buffer = io.BytesIO()
        matplotlib.image.imsave(buffer, picture.numpy(), format="png")
        write(path, buffer.getvalue())
        return
    save(shown_grid(picture, title), path)


def grid(images: Tensor, columns: int) -> Tensor:
    """One picture uint8 [height, width, 3] of images [n, C, height, width], with white lines between them."""
    n, channels, height, width = images.shape
    rows = -(-n // columns)
    canvas = torch.ones(rows * columns, 3, height + 1, width + 1)
    colours = images.cpu().float().clamp(0, 1).expand(n, 3 if channels == 1 else channels, -1, -1)
    canvas[:n, :, :height, :width] = colours
    canvas = canvas.view(rows, columns, 3, height + 1, width + 1).permute(0, 3, 1, 4, 2)
    picture = (canvas.reshape(rows * (height + 1), columns * (width + 1), 3) * 255).byte()
    scale = max(1, 800 // picture.shape[1])
    return picture.repeat_interleave(scale, 0).repeat_interleave(scale, 1)


@styled
def shown_grid(picture: Tensor, title: str) -> Picture:
    inches = picture.shape[1] / 120
    figure, ax = subplots(figsize=(inches, picture.shape[0] / 120 + 0.4))
    ax.imshow(picture.numpy())
    ax.set_title(title, fontsize=9)
    ax.axis("off")
    return figure


@styled
def scatter(points: Tensor) -> Picture:
    """Samples of a 2-D model (the first two axes of any other)."""
    figure, ax = subplots(figsize=(4, 4))
    ax.set_title(f"{len(points)} samples", fontsize=10)
    ax.scatter(*points[:, :2].cpu().numpy().T, s=3)
    ax.set_aspect("equal")
    return figure


@styled
def curves(lines: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Picture:
    """One panel a quantity: its values against the step, and of long ones their moving average."""
    columns = min(4, len(lines))
    rows = -(-len(lines) // columns)
    figure, axes = subplots(rows, columns, figsize=(4 * columns, 2.8 * rows), squeeze=False)
    for ax in axes.flat[len(lines) :]:
        ax.axis("off")
    for ax, (name, (x, y)) in zip(axes.flat, lines.items(), strict=False):
        long = len(y) > SMOOTHED
        ax.plot(x, y, linewidth=1, alpha=0.3 if long else 1, color="C0")
        if long:
            ax.plot(x, smoothed(y), linewidth=1.5, color="C0")
        ax.set_title(name_of(name), fontsize=10)
        ax.set_xlabel("step")
        ax.grid(alpha=0.3)
    return figure


def smoothed(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """An exponential moving average that starts without bias."""
    total, mass, averages = 0.0, 0.0, []
    for value in values:
        total, mass = weight * total + (1 - weight) * value, weight * mass + (1 - weight)
        averages.append(total / mass)
    return averages


@styled
def gradient_bias(facts: Mapping[str, Any], path: Path) -> None:
    """Relative bias and spread against N, a line for each K, logarithmic; the Newton step as a dotted line each."""
    figure, axes = subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for ax, name in zip(axes, ("bias", "spread"), strict=True):
        for K, row, newton in zip(facts["K"], facts[f"relative_{name}"], facts[f"newton_{name}"], strict=True):
            (line,) = ax.semilogy(facts["N"], row, marker="o", markersize=4, label=f"unrolled, K = {K}")
            ax.axhline(max(newton, FLOOR), color=line.get_color(), linestyle=":", label=f"Newton, K = {K}")
        ax.set_xlabel("N, unrolled steps")
        ax.set_title(f"{name} of the gradient, relative to the exact one", fontsize=10)
        ax.grid(alpha=0.3, which="both")
    axes[1].legend(fontsize=7, ncols=2)
    save(figure, path)


@styled
def histograms(values: Mapping[str, Tensor], label: str, path: Path, title: str = "") -> None:
    """One histogram a name, on a common linear axis. Where one of the sets would be a single bin of it, the axis is
    asinh, linear within the spread of the first set, and its label says so."""
    sets = {name: v.double() for name, v in values.items()}
    everything = torch.cat(list(sets.values()))
    low, high = float(everything.min()), float(everything.max())
    if low == high:
        low, high = low - 1, high + 1
    first = next(iter(sets.values()))
    centre, spread = float(first.median()), float(first.quantile(0.75) - first.quantile(0.25)) or 1.0
    narrow = min(float(v.max() - v.min()) for v in sets.values()) < (high - low) / BINS
    figure, ax = subplots(figsize=(6.5, 3.2))
    if narrow:
        first_edge, last_edge = (float(np.arcsinh((end - centre) / spread)) for end in (low, high))
        ends = np.linspace(first_edge, last_edge, BINS + 1)
        edges = centre + spread * np.sinh(ends)
        ax.set_xscale(
            "function", functions=(lambda x: np.arcsinh((x - centre) / spread), lambda y: centre + spread * np.sinh(y))
        )
        ax.set_xticks(edges[:: BINS // 5], [f"{place:.4g}" for place in edges[:: BINS // 5]])
    else:
        edges = np.linspace(low, high, BINS + 1)
    for name, v in sets.items():
        fractions = np.histogram(v.numpy(), edges)[0] / len(v)
        ax.stairs(fractions, edges, fill=True, alpha=0.6, label=f"{name} ({len(v)})")
    ax.set_xlabel(
        f"{label} (asinh axis: linear near {centre:.3g}, logarithmic far from it)" if narrow else label, fontsize=8
    )
    ax.set_ylabel("fraction per bin", fontsize=8)
    ax.tick_params(labelsize=7)
    if title:
        ax.set_title(title, fontsize=10)
    ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, path)


@styled
def embedding(points: np.ndarray, labels: Tensor, path: Path, title: str = "") -> None:
    """Points [n, 2] in the plane, coloured by label, with a legend of the labels."""
    figure, ax = subplots(figsize=(6, 5))
    of, known = labels.cpu().numpy(), labels.unique().tolist()
    colours = colormaps["tab10" if len(known) <= 10 else "turbo"].resampled(len(known))
    for i, label in enumerate(known):
        ax.scatter(*points[of == label].T, s=6, color=colours(i), label=str(label))
    if len(known) <= 20:
        ax.legend(title="label", fontsize=8, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5))
    ax.set_title(title, fontsize=10)
    ax.set(xticks=[], yticks=[])
    save(figure, path)


@styled
def figures(values: Mapping[str, Mapping[str, tuple[float | str, float]]], path: Path) -> None:
    """One panel a figure, in it one point a run with its deviation, on the scale of their differences; of one that is
    not known these words."""
    columns = min(4, len(values))
    rows = -(-len(values) // columns)
    tall = 1.2 + 0.25 * max((len(by_run) for by_run in values.values()), default=1)
    figure, axes = subplots(rows, columns, figsize=(4 * columns, tall * rows), squeeze=False)
    for ax in axes.flat[len(values) :]:
        ax.axis("off")
    for ax, (name, by_run) in zip(axes.flat, values.items(), strict=False):
        for row, (value, deviation) in enumerate(by_run.values()):
            if isinstance(value, str):
                ax.text(0.5, row, "not known", va="center", ha="center", fontsize=7, transform=ax.get_yaxis_transform())
            else:
                ax.errorbar(value, row, xerr=deviation or None, fmt="o", capsize=3, color=f"C{row % 10}")
                ax.annotate(f"{value:.4g}", (value, row), xytext=(0, 5), textcoords="offset points", fontsize=7,
                            ha="center")  # fmt: skip
        ax.set_yticks(range(len(by_run)), list(by_run))
        ax.set_ylim(len(by_run) - 0.4, -0.7)
        ax.margins(x=0.2)
        ax.grid(axis="x", alpha=0.3)
        ax.set_title(name, fontsize=9)
        ax.tick_params(labelsize=7)
    save(figure, path)
