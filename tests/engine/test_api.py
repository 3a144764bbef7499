"""`import eblvm`: the public names, the documented page of one's own model, runs of recipes as objects."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import eblvm
from eblvm.engine.evaluation.eval_model import eval_models

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_page_on_models_runs_as_written(tmp_path: Path) -> None:
    """From data to samples, evaluation and reload with `import eblvm` only, in at most 25 lines of code."""
    first, second = blocks("models.md")
    code = [line for line in first.splitlines() if line.strip() and not line.lstrip().startswith(('"""', "#"))]
    assert len(code) <= 25
    assert all("eblvm." not in line or "eblvm.engine" not in line for line in code)
    names: dict = {"out": tmp_path / "mine", "joint_out": tmp_path / "joint"}
    exec(first, names)
    assert names["samples"].shape == (50, 2)
    assert names["scores"].shape == (10, 2)
    assert names["means"].shape == (10, 4)
    assert torch.isfinite(names["samples"]).all()
    assert {"test_loss", "test_divergence", "auroc_uniform"} <= set(names["figures"])
    assert names["losses"][-1] < names["losses"][0] * 1.5
    exec(second, names)


def test_the_page_on_posteriors_runs_as_written(tmp_path: Path) -> None:
    """Both families train, and their samples follow their densities, with right first and second derivatives."""
    families, training = blocks("posteriors.md")
    names: dict = {"out": tmp_path, "steps": 8}
    exec(families, names)
    exec(training, names)
    assert names["runs"]["laplace"].posterior([[0.1, 0.2]]).mean.shape == (1, 2)
    assert (names["spread"] > 0).all()
    torch.manual_seed(0)
    p = [torch.randn(1, 2, dtype=torch.float64, requires_grad=True) for _ in range(5)]
    mixture = names["Mixture"](nn.Identity(), 2)
    u = torch.rand(4000, 1, 2, dtype=torch.float64)
    h = mixture.rsample(p, u)
    weight, means = torch.sigmoid(p[0]), p[1:3]
    exact = weight * means[0] + (1 - weight) * means[1]
    assert torch.allclose(mixture.mean(p), exact)
    error = h.std(0) / 4000**0.5
    assert ((h.mean(0) - exact).abs() < 4 * error).all()
    assert torch.autograd.gradcheck(lambda *p: mixture.rsample(p, u[:2]), p)
    assert torch.autograd.gradgradcheck(lambda *p: mixture.rsample(p, u[:2]), p)


def test_the_page_on_the_api_names_every_public_name() -> None:
    text = (DOCS / "api.md").read_text()
    assert not [name for name in dir(eblvm) if f"`{name}" not in text]
    assert 20 <= len(dir(eblvm)) <= 36


def test_importing_it_loads_no_torch_and_unknown_names_are_refused() -> None:
    code = "import sys, eblvm; assert 'torch' not in sys.modules; print(eblvm.__version__); eblvm.nothing"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == eblvm.__version__
    assert "has no attribute 'nothing'" in done.stderr


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> "eblvm.Run":
    out = tmp_path_factory.mktemp("board") / "run"
    return eblvm.train("checkerboard", method="bidsm", steps=60, N=1, K=1, log_every=20, validations=2, out=out)


def test_a_recipe_as_an_object(board: "eblvm.Run") -> None:
    v = torch.linspace(-2, 2, 12).view(6, 2)
    assert board.complete
    assert board.step in (30, 60, [30], [60])
    h = board.posterior(v).sample()
    assert set(h.unique().tolist()) <= {0.0, 1.0}
    assert board.energy(v, h).shape == (6,)
    with torch.no_grad():
        by_hand = -torch.logsumexp(
            torch.stack(
                [-board.energy(v, bits.expand(6, 4)) for bits in torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 4)]
            ),
            0,
        )
    torch.testing.assert_close(board.free_energy(v), by_hand, rtol=1e-4, atol=1e-4)
    x = v.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: board.free_energy(x.float()).double(), x, eps=1e-2, atol=1e-1, rtol=1e-1)
    torch.testing.assert_close(board.score(v), -torch.func.grad(lambda x: board.free_energy(x).sum())(v))
    assert board.sample(5, steps=3).shape == (5, 2)
    assert board.reconstruct(v).shape == v.shape
    assert board.history["step"][-1] == 60
    assert "theta.W" in board.state_dict()
    assert "test_log_likelihood" in board.evaluate(chains=10, temperatures=5)
    assert "bidsm on grbm" in repr(board)


def test_loading_again_and_saved_configurations(board: "eblvm.Run", tmp_path: Path) -> None:
    again = eblvm.load(board.folder, model="last")
    torch.testing.assert_close(again.theta, eblvm.load(board.folder, model="last").theta)
    path = tmp_path / "board.json"
    board.save_config(path)
    from eblvm.engine.cli import main

    assert main(["train", "--config", str(path), "--dry-run"]) == 0
    with pytest.raises(eblvm.UserError, match="not a run folder"):
        eblvm.load(tmp_path)
    with pytest.raises(TypeError, match="'colour'"):
        board.evaluate(colour=1)


class Pair(nn.Module):
    def forward(self, f: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return (h - f).square().sum(-1)


def test_python_as_people_write_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A number where several are possible, arrays and lists, no bar, messages in a logger, pictures in a notebook."""
    samples = np.random.default_rng(0).normal(size=(100, 2))
    parts = {"energy": eblvm.Separable(nn.Linear(2, 3), Pair()), "posterior": eblvm.Gaussian(nn.Linear(2, 6), 3)}
    how = {"lr": np.float32(0.01), "steps": 6, "log_every": 2, "batch": 10, "progress": False}
    run = eblvm.train(**parts, data=samples.tolist(), out=tmp_path / "run", **how)
    assert capfd.readouterr() == ("", "")
    assert run.config["lr"] == pytest.approx((0.01,))
    v = samples[:3].astype(np.float32)
    assert torch.equal(run.score(v), run.score(v.tolist()))
    assert torch.equal(run.score(v), run.score(torch.from_numpy(v)))
    assert run.energy(v, np.zeros((3, 3))).shape == (3,)
    assert isinstance(run.step, int)
    assert run.complete
    assert "6 steps" in repr(run.config)
    assert len(repr(run.config)) < 100
    for picture in (run.plot(), run.plot("loss"), run.show_samples(10, steps=3)):
        assert picture._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(eblvm.UserError, match="quantity"):
        run.plot("los")
    run.sample(4, steps=2)
    assert run._repr_html_().count("<img") == 1


class Head(nn.Module):
    def __init__(self, width: int = 3):
        super().__init__()
        self.net = nn.Linear(2, width)

    def forward(self, f: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return (h - f).square().sum(-1) + self.net(f + h).square().sum(-1)


def parts(width: int = 3) -> dict:
    torch.manual_seed(0)
    return {
        "energy": eblvm.Separable(nn.Linear(2, 2), Head(width)),
        "posterior": eblvm.Gaussian(nn.Linear(2, 4), 2),
        "data": torch.randn(200, 2),
    }


def test_a_run_of_ones_own_model_is_refused_with_another(tmp_path: Path) -> None:
    how = {"method": "bidsm", "sigma": 0.3, "N": 0, "K": 1, "batch": 20, "out": tmp_path / "run"}
    eblvm.train(**parts(), **how, steps=10)
    for width, steps in ((4, 20), (4, 10)):
        with pytest.raises(eblvm.UserError, match=r"another model \(its energy differs"):
            eblvm.train(**parts(width), **how, steps=steps)
    with pytest.raises(eblvm.UserError, match="models given in Python"):
        eblvm.load(tmp_path / "run", data=torch.randn(200, 2))
    longer = eblvm.train(**parts(), **how, steps=20)
    whole = eblvm.train(**parts(), **{**how, "out": tmp_path / "whole"}, steps=20)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, longer.state_dict()[name])


def test_what_is_missing_is_said() -> None:
    with pytest.raises(eblvm.UserError, match="give a recipe, or an `energy`"):
        eblvm.train()
    with pytest.raises(eblvm.UserError, match="expected at least 20"):
        eblvm.train(**{**parts(), "data": torch.zeros(5, 2)})
    with pytest.raises(eblvm.UserError, match="does not read --L"):
        eblvm.train("checkerboard", method="sm", L=7)


def test_the_free_energy_is_that_of_an_evaluation(tmp_path: Path) -> None:
    """Where p(v) is not closed both are the same importance-weighted bound, from the same noise."""
    run = eblvm.train(**parts(), method="bidsm", sigma=0.3, N=0, K=1, batch=20, steps=10, out=tmp_path / "run")
    v = run.saved.dataset.test
    evaluated = eval_models(run.saved, run.model)[0].log_density(v, 0).value
    assert torch.equal(run.free_energy(v), -evaluated.float())
    x = v.clone().requires_grad_()
    (slope,) = torch.autograd.grad(run.free_energy(x).sum(), x)
    assert torch.equal(run.score(v), -slope)
