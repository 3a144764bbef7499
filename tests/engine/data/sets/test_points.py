"""The 2-D sets: support, moments, their log density as the density of their points, and determinism."""

import hashlib
import math

import pytest
import torch

from eblvm.engine.data.sets import KINDS
from eblvm.engine.data.sets.checkerboard import Checkerboard
from eblvm.engine.data.sets.checkerboard4 import Checkerboard4
from eblvm.engine.data.sets.curves import Blobs, Circle, EightGaussians
from eblvm.engine.data.sets.points import Points

N = 20_000
TOYS = {kind: node for kind, node in KINDS.items() if isinstance(node, Points)}
# Mean and covariance matrix (xx, yy, xy) where they are simple.
MOMENTS = {
    "checkerboard": ((0.5, 0.5), (1 / 12, 1 / 12, 1 / 16)),
    "checkerboard4": ((0, 0), (16 / 3, 16 / 3, 1)),
    "circle": ((0, 0), (2.01, 2.01, 0)),
    "blobs": ((0, 0), (2.16, 2.16, 0)),
    "eightgaussians": ((0, 0), (2.04, 2.04, 0)),
}


def test_checkerboard_covers_two_cells_evenly() -> None:
    v = Checkerboard().points(N)
    cells = torch.floor(2 * v)
    assert torch.equal(cells[:, 0], cells[:, 1])
    assert v.min() >= 0
    assert v.max() <= 1
    assert abs(float(cells[:, 0].mean()) - 0.5) < 4 * 0.5 / N**0.5
    within = 2 * v - cells
    assert (within.mean(0) - 0.5).abs().max() < 4 * (1 / 12) ** 0.5 / N**0.5
    assert (within.var(0) - 1 / 12).abs().max() < 0.002


def test_checkerboard4_is_the_board_of_published_results() -> None:
    digest = hashlib.sha256(Checkerboard4().points(1000).numpy().tobytes()).hexdigest()
    assert digest[:16] == "57828970abf29706"


@pytest.mark.parametrize("name", MOMENTS)
def test_moments(name: str) -> None:
    mean, (xx, yy, xy) = MOMENTS[name]
    v = TOYS[name].points(N).double()
    error = 5 * max(xx, yy) / N**0.5  # of a second moment; no set has longer tails than a Gaussian
    torch.testing.assert_close(v.mean(0), torch.tensor(mean).double(), rtol=0, atol=5 * max(xx, yy) ** 0.5 / N**0.5)
    torch.testing.assert_close(v.T.cov(), torch.tensor([[xx, xy], [xy, yy]]).double(), rtol=0, atol=error * 1.5)


@pytest.mark.parametrize("name", TOYS)
def test_mean_and_std_for_networks(name: str) -> None:
    points, v = TOYS[name], TOYS[name].points(N)
    assert float(v.std()) == pytest.approx(points.std, rel=0.02)
    assert abs(float(v.mean()) - points.mean) < 0.02 * points.std


@pytest.mark.parametrize("name", TOYS)
def test_a_range_of_points_is_a_part_of_them_all(name: str) -> None:
    points = TOYS[name].points
    assert torch.equal(points(50)[20:], points(30, first=20))
    assert points(3).shape == (3, 2)
    assert points(3).dtype == torch.float32
    assert points(0).shape == (0, 2)


def test_sets_differ_in_their_noise() -> None:
    """blobs and eightgaussians are made alike: without streams of their own their noise would be the same."""
    z = [(Blobs().points(N) - Blobs.curves[0](torch.zeros(N)))[:, 0], EightGaussians().points(N)[:, 0]]
    assert abs(float(torch.corrcoef(torch.stack(z))[0, 1])) < 0.05


@pytest.mark.parametrize("name", TOYS)
def test_log_density_is_that_of_the_points(name: str) -> None:
    """It integrates to 1, and the share of the points in a half plane or a disc is its integral there."""
    toy = TOYS[name]
    low, high = (-0.2, 1.2) if name == "checkerboard" else (-5.6, 5.6)
    size = 168  # the boards' cells are whole numbers of the grid's
    axis = low + (high - low) * (torch.arange(size).double() + 0.5) / size
    grid = torch.cartesian_prod(axis, axis)
    mass = toy.log_density(grid).exp() * ((high - low) / size) ** 2
    assert abs(float(mass.sum()) - 1) < 1e-6 * (1 if name.startswith("checker") else 1000)
    v = toy.points(N)
    assert bool(toy.log_density(v).isfinite().all())
    for inside in (lambda x: x[:, 0] > 0.4, lambda x: x[:, 1] - 0.3 * x[:, 0] < 0.2, lambda x: x.norm(dim=1) < 1.1):
        expected = float(mass[inside(grid)].sum())
        error = 4 * math.sqrt(expected * (1 - expected) / N) + 0.01  # the second: cells that a boundary cuts
        assert abs(float(inside(v).double().mean()) - expected) < error


def test_circle_density_in_closed_form() -> None:
    """A ring blurred by N(0, s^2): N(|v| - R; s) e^-(|v| R / s^2) I0(|v| R / s^2) / (s sqrt(2 pi)), in the plane."""
    v = torch.linspace(0.5, 3.5, 41, dtype=torch.float64)[:, None] * torch.tensor([[0.6, 0.8]]).double()
    r, s = v.norm(dim=1), Circle.thickness
    expected = -0.5 * ((r - 2) / s) ** 2 - math.log(2 * math.pi * s**2) + torch.special.i0e(2 * r / s**2).log()
    torch.testing.assert_close(Circle().log_density(v), expected, rtol=1e-10, atol=1e-10)


def test_best_log_likelihood_of_the_boards() -> None:
    board, board4 = Checkerboard(), Checkerboard4()
    assert float(board.log_density(board.points(100)).mean()) == pytest.approx(math.log(2))
    assert float(board4.log_density(board4.points(100)).mean()) == pytest.approx(-math.log(32))
    outside = torch.tensor([[0.2, 0.7], [0.7, 0.2], [-0.1, 0.2], [1.1, 0.7]])
    assert bool((board.log_density(outside) == -math.inf).all())


def test_the_4x4_board_covers_its_dark_cells_evenly() -> None:
    data = Checkerboard4().load(images=False)
    assert [len(part) for part in data[:3]] == [60_000, 10_000, 10_000]
    column, row = (torch.floor(data.train / 2).long() + 2).T
    assert column.min() == row.min() == 0
    assert column.max() == row.max() == 3
    assert ((column + row) % 2 == 0).all()
    counts = torch.bincount(4 * column + row, minlength=16)
    counts = counts[counts > 0]
    assert len(counts) == 8
    assert (counts - 7500).abs().max() < 5 * 7500**0.5
