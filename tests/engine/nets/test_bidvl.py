"""The nets of BiDVL: shapes at every size, the published widths, and errors for sizes that do not fit."""

import pytest
import torch

from eblvm.engine.errors import UserError
from eblvm.engine.nets.bidvl import start_buffers
from eblvm.engine.nets.spectral import Spectral
from eblvm.engine.recipes import recipe
from eblvm.kernels.philox import Key

TINY = {"width": 2, "posterior_width": 2, "generator_width": 2, "latent": 5}


@pytest.mark.parametrize("energy", ["decoupled", "joint"])
@pytest.mark.parametrize(
    ("model", "size"), [("sn-conv", s) for s in (8, 16, 32, 64, 128)] + [("sn-resnet", s) for s in (32, 128)]
)
def test_shapes(model: str, size: int, energy: str) -> None:
    config = recipe("cifar10", method="bidvl").replaced(**TINY, model=model, energy=energy)
    nets = config.model.generative((3, size, size), config["energy"] == "joint")
    key = Key(0, 0)
    held = []
    for net in nets:
        params = net.initial(key)
        held.append(params | start_buffers(net, params, key, 0))
    v = torch.rand(2, 3, size, size)
    mean, log_std = nets[1].at(held[1]).params(v)
    assert mean.shape == log_std.shape == (2, 5)
    assert (log_std <= 0).all() or model == "sn-conv"
    made = nets[2].at(held[2]).decode(mean)
    assert made.shape == v.shape
    assert made.abs().max() <= 1
    assert nets[0].at(held[0]).energy(v, mean).shape == (2,)


def test_the_released_start() -> None:
    """Check weights N(0, 0.02^2), biases of convolutions within 1/sqrt(fan in), batch norms 1 and 0."""
    config = recipe("cifar10", method="bidvl").replaced(width=16, posterior_width=16, generator_width=16)
    assert config["initial"] == "normal"
    for net in config.model.generative((3, 32, 32), joint=False):
        params = net.initial(Key(0, 0))
        weights = torch.cat([p.flatten() for p in params.values() if p.dim() > 1])
        assert float(weights.mean()) == pytest.approx(0, abs=5 * 0.02 / len(weights) ** 0.5)
        assert float(weights.std()) == pytest.approx(0.02, rel=0.01)
        for name, p in params.items():
            if p.dim() == 1:
                weight = params[name.removesuffix("bias").removesuffix("weight") + "weight"]
                if weight.dim() == 1:
                    assert torch.equal(p, torch.full_like(p, float(name.endswith("weight"))))
                else:
                    assert 0 < float(p.abs().max()) <= weight[0].numel() ** -0.5


def test_published_widths() -> None:
    energy, encoder, generator = recipe("cifar10", method="bidvl").model.generative((3, 32, 32), joint=False)
    outputs = [m.weight.shape[0] for m in energy.modules() if isinstance(m, Spectral)]
    assert outputs == [64, 64, 128, 128, 256, 256, 512, 512, 512, 1]
    assert [p.shape[0] for p in encoder.parameters() if p.dim() == 4] == [48, 96, 192, 384, 200]
    ups = [tuple(p.shape[:2]) for p in generator.parameters() if p.dim() == 4]
    assert ups == [(384, 384), (384, 192), (192, 96), (3, 96)]
    energy, _, generator = recipe("celeba128", method="bidvl").model.generative((3, 128, 128), joint=False)
    firsts = [block.one.weight.shape[1] for block in energy.trunk.children() if hasattr(block, "one")]
    assert firsts == [3, 64, 128, 256, 512, 1024]


@pytest.mark.parametrize(
    ("model", "shape"),
    [("sn-conv", (3, 28, 28)), ("sn-conv", (3, 32, 64)), ("sn-conv", (64,)), ("sn-resnet", (3, 64, 64))],
)
def test_sizes_that_do_not_fit(model: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="expected square images of"):
        recipe("cifar10", method="bidvl").replaced(model=model).model.generative(shape, joint=False)


def test_start_is_by_seed_and_normalised() -> None:
    energy, *_ = recipe("digits", method="bidvl").replaced(**TINY).model.generative((1, 8, 8), joint=False)
    one, other = (energy.initial(Key(seed, 0)) for seed in (0, 1))
    assert not torch.equal(one["trunk.0.weight"], other["trunk.0.weight"])
    buffers = start_buffers(energy, one, Key(0, 0), 0)
    for name, u in buffers.items():
        w = one[name.removesuffix("u") + "weight"].flatten(1)
        assert torch.linalg.vector_norm(u @ w) > 0.97 * torch.linalg.matrix_norm(w, 2)
