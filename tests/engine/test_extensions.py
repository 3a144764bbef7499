"""One of each from a folder of the user's own: a loss, an estimator, a method, a divergence, a sampler and a data set
are one file, a model is two. Each is found by its name, trains a run, and the run is read again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOSS = '''
"""Denoising score matching with an absolute error."""
from eblvm.engine.methods.estimates import Batch, Loss
from eblvm.engine.options import option


class Absolute(Loss):
    kind = "absolute"
    estimators = ("exact", "bism", "mean-field")
    perturbs = True

    spread: float = option(0.1, "noise level", above=0)

    def perturb(self, v, eps, noise):
        return Batch(v + self.spread * eps, eps, v.new_full(v[:1].shape, self.spread), v.new_ones(()))

    def __call__(self, estimate, batch, noise):
        return (estimate.score() + batch.eps / self.spread).abs().sum(-1)
'''
ESTIMATOR = '''
"""The score at the mean of q."""
from eblvm.engine import autodiff
from eblvm.engine.methods.estimates import ScoreEstimate
from eblvm.engine.methods.lower_level import LowerLevel


class MeanField(LowerLevel):
    kind = "mean-field"
    prefix = "mf-"

    def respond(self, nets, theta, f, phi, batches, noise, rates):
        phi, info = self.real_steps(nets, theta, f, phi, batches, noise, rates)
        return phi.params, phi, info

    def estimate(self, nets, theta, response, features, batch, noise, rates):
        energy, q = nets.energy.at(theta), nets.posterior.at(response)
        h = q.mean(q.params(batch.v)).detach()

        def score():
            return features.pull(autodiff.grad(lambda x: (-energy.head(x, h).sum(), ()), features.f)[0])

        return ScoreEstimate(lambda x: -energy.energy(x, h), score)
'''
METHOD = '''
"""Raise the energy of noise, lower that of the data."""
from functools import partial

from eblvm.engine import autodiff
from eblvm.engine.methods.base import Method, Nets
from eblvm.engine.options import option
from eblvm.kernels import philox


class Push(Method):
    kind = "push"
    needs_conditionals = True

    reach: float = option(2.0, "how far away the noise is", above=0)

    def nets(self, config, data, energy=None, posterior=None):
        return Nets(energy or config.model.energy(tuple(data.shape[1:]), learns_q=False))

    def draw(self, nets, key, rows):
        purpose = philox.purpose(philox.Purpose.CONTRAST)
        return {"away": philox.normal(key, purpose, rows.samples, rows.shape, **rows.place)}

    def loss(self, nets, v, noise, theta):
        energy = nets.energy.at(theta)
        gap = energy.free_energy(v) - energy.free_energy(v + self.reach * noise["away"])
        value = gap.mean() + 0.1 * gap.square().mean()
        return value, value.detach()

    def gradient(self, nets):
        def gradient(state, v, noise, rates, finish=None):
            bars, loss = autodiff.grad(partial(self.loss, nets, v, noise), state.theta.params)
            return bars, state, {"loss": loss}

        return gradient

    def validation(self, nets, state, v, noise, size=None):
        return self.loss(nets, v, noise, state.theta.params)[1]
'''
DIVERGENCE = '''
"""The squared distance of q's logits to those of p(h|v)."""
from eblvm.engine import autodiff
from eblvm.engine.methods.lower_level import Divergence


class Logits(Divergence):
    kind = "logits"
    needs = ("linear_in_h",)
    reads_samples = False

    def __call__(self, head, posterior, p, noise):
        slope, _ = autodiff.grad(lambda h: (head(h).sum(), ()), posterior.mean(p))
        return (p + slope).square().sum(-1)
'''
SAMPLER = '''
"""Points of the training range, uniformly: a sampler that knows no model."""
from eblvm.engine.options import option
from eblvm.engine.sampling.base import Sampler, Samples
from eblvm.kernels import philox


class Box(Sampler):
    kind = "box"

    margin: float = option(0.0, "added on every side", low=0)

    def suits(self, run):
        return ""

    @property
    def work(self):
        return "one draw"

    def draw(self, run, model, count, seed, first, total):
        low, high = run.extent
        purpose = philox.purpose(philox.Purpose.SAMPLE_V)
        u = philox.uniform(philox.Key(seed, 0), purpose, count, run.shape, first=first)
        return Samples(low - self.margin + (high - low + 2 * self.margin) * u)
'''
DATA = '''
"""Points on a segment."""
import torch

from eblvm.engine.data.sets.base import DataOptions
from eblvm.engine.options import option
from eblvm.kernels import philox


class Segment(DataOptions):
    kind = "segment"

    slope: float = option(0.5, "of the segment")

    def shape(self, images):
        return (2,)

    def load(self, images, threads=1):
        from eblvm.engine.data.dataset import Dataset

        x = philox.uniform(philox.Key(7, 0), philox.purpose(philox.Purpose.DATA), 300, (1,))
        return Dataset(*torch.cat([x, self.slope * x], 1).split([200, 50, 50]))
'''
MODEL = '''
"""The options of a model whose modules are in product_net.py."""
from product_net import ProductNet

from eblvm.engine.models.base import Model
from eblvm.engine.options import option


class Product(Model):
    kind = "product"
    continuous_h = False
    linear_in_h = exact_kl = True

    latent: int = option(3, "H, the number of latent units", low=1)
    stiffness: float = option(1.0, "of the well", above=0)

    def energy(self, shape, learns_q):
        return ProductNet(shape[0], self.latent, self.stiffness)
'''
MODULES = '''
import torch

from eblvm.engine.nets.base import Energy, fan_in_uniform
from eblvm.kernels.philox import Purpose


class ProductNet(Energy):
    """E(v, h) = k |v|^2 / 2 - linear(v).h, with binary h."""

    def __init__(self, visible, latent, stiffness):
        super().__init__()
        self.linear, self.latent, self.stiffness = torch.nn.Linear(visible, latent, device="meta"), latent, stiffness

    def initial(self, key):
        return fan_in_uniform(self, key, Purpose.INIT_THETA)

    def features(self, v):
        return 0.5 * self.stiffness * v.square().sum(-1), self.linear(v)

    def head(self, f, h):
        return f[0] - (f[1] * h).sum(-1)
'''
FILES = {
    "absolute_loss.py": LOSS,
    "mean_field.py": ESTIMATOR,
    "push.py": METHOD,
    "logits_divergence.py": DIVERGENCE,
    "box_sampler.py": SAMPLER,
    "segment.py": DATA,
    "product_net.py": MODULES,
    "product.py": MODEL,
}
PROGRAM = """
import sys
sys.path.insert(0, {folder!r})
import eblvm, torch
from eblvm.engine.config import Config
import absolute_loss, mean_field, push, logits_divergence, box_sampler, segment, product

settings = dict(batch=20, steps=6, log_every=3, validations=1, preview_every=0)
runs = {{
    "loss": Config.of("segment", "absolute", "grbm", "segment", spread=0.2, **settings),
    "fused or not": Config.of("segment", "biabsolute", "grbm", "segment", N=1, K=1, **settings),
    "estimator": Config.of("segment", "mf-absolute", "product", "segment", stiffness=2.0, K=1, **settings),
    "in chunks": Config.of("segment", "mf-absolute", "product", "segment", K=1, micro_batch=7, **settings),
    "method": Config.of("segment", "push", "grbm", "segment", reach=1.0, slope=2.0, **settings),
    "divergence": Config.of("segment", "bidsm", "grbm", "segment", divergence="logits", N=1, K=1, **settings),
    "replicas": Config.of("segment", "push", "grbm", "segment", replicas=2, **settings),
}}
for name, config in runs.items():
    out = {folder!r} + "/runs/" + name.replace(" ", "-")
    run = eblvm.train(config, out=out, say=lambda _: None)
    assert run.complete, name
    again = eblvm.load(out)
    assert again.config == config, name
    for a, b in zip(run.theta.values(), again.theta.values(), strict=True):
        assert torch.equal(a, b), name
    box = again.sample(5, sampler="box", margin=0.5)
    assert box.shape == (5, 2) and torch.isfinite(box).all()
print("all trained")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own")
    for name, text in FILES.items():
        (path / name).write_text(text)
    return path


def test_one_of_each_trains(folder: Path) -> None:
    program = PROGRAM.format(folder=str(folder))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "all trained" in done.stdout


def test_the_command_line_imports_them_with_with(folder: Path) -> None:
    out = folder / "runs" / "by-command"
    imports = [f"--with={folder / name}" for name in ("absolute_loss.py", "box_sampler.py")]
    train = (
        "train checkerboard --method biabsolute --spread 0.3 --N 1 --K 1 --steps 4 --validations 0 --batch 20".split()
    )
    for arguments in ([*train, "--out", str(out)], ["sample", str(out), "--sampler", "box", "--count", "3"]):
        done = subprocess.run([sys.executable, "-m", "eblvm", *arguments, *imports], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert json.loads((out / "config.json").read_text())["method"]["loss"]["spread"] == 0.3
    lost = subprocess.run([sys.executable, "-m", "eblvm", "eval", str(out)], capture_output=True, text=True)
    assert lost.returncode == 2
    assert "biabsolute" in lost.stderr
    assert "--with" in lost.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("absent.py", None, "does not exist"),
        ("broken.py", "x = (", "cannot be imported (SyntaxError"),
        ("twin.py", LOSS.replace('"absolute"', '"dsm"'), "has the kind 'dsm', which"),
    ],
)
def test_a_file_that_cannot_be_used_is_said(tmp_path: Path, name: str, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    arguments = ["train", "checkerboard", "--method", "dsm", "--with", str(tmp_path / name), "--dry-run"]
    done = subprocess.run([sys.executable, "-m", "eblvm", *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
