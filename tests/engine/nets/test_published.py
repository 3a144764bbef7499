"""The published deep models: their exact sizes, and equality with networks of plain torch layers in fp64."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from eblvm.engine.models.deep import Deep, Published
from eblvm.engine.nets.base import Energy, Net
from eblvm.engine.nets.deep import Layer
from eblvm.engine.nets.posteriors import StridedGaussian, check_fit
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

MNIST, CIFAR10, CELEBA64 = (1, 32, 32), (3, 32, 32), (3, 64, 64)
B, SHAPE, H, WIDTH, DEPTH = 3, (2, 32, 32), 4, 2, 12  # the last stage has 4x4 pixels: convolutions by products
TOLERANCE = 1e-10  # relative to the largest entry


def published(shape: tuple[int, int, int], learns_q: bool = True, **options: object) -> Energy:
    """Return the published EBLVM, or the published EBM."""
    return Deep(network=Published(), **options).energy(shape, learns_q)  # type: ignore[arg-type]


def count(model: Net) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("shape", "width", "depth", "theta", "phi"),
    [(MNIST, 64, 12, 9_859_250, 779_364), (CIFAR10, 128, 18, 63_936_562, 780_516),
     (CELEBA64, 128, 18, 68_876_338, 2_009_316)],
    ids=["mnist", "cifar10", "celeba64"],
)  # fmt: skip
def test_parameter_counts(shape: tuple[int, int, int], width: int, depth: int, theta: int, phi: int) -> None:
    energy, posterior = published(shape, width=width, depth=depth), StridedGaussian(shape, 50)
    assert (count(energy), count(posterior)) == (theta, phi)
    assert all(p.is_meta for p in (*energy.parameters(), *posterior.parameters()))
    check_fit(energy, posterior, shape)


def test_sizes_that_the_vages_paper_reports() -> None:
    """Check 244 and 238 MB of fp32 parameters for the EBLVM and the EBM of CIFAR-10."""
    megabytes = [4 * count(model) / 2**20 for model in (published(CIFAR10), published(CIFAR10, learns_q=False))]
    assert [round(size) for size in megabytes] == [244, 238]


def test_head_width_and_layers() -> None:
    assert Published().head_units(CIFAR10, 128) == 8192
    for depth in (12, 18, 24):
        layers = [m for m in published(CELEBA64, latent=5, width=4, depth=depth).modules() if isinstance(m, Layer)]
        assert len(layers) == depth
        assert [layer.conv.bias is None for layer in layers] == [True, False] * (depth // 2)


class PlainBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.first = nn.Conv2d(inputs, inputs, 3, padding=1, bias=False)
        self.second = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)
        self.shrinks = inputs != outputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.shortcut(x) + self.second(F.elu(self.first(F.elu(x))))
        return F.avg_pool2d(y, 2) if self.shrinks else y


class PlainFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(SHAPE[0], WIDTH, 3, padding=1)
        widths = [WIDTH, 2 * WIDTH, 2 * WIDTH, 4 * WIDTH, 4 * WIDTH, 8 * WIDTH, 8 * WIDTH]
        self.blocks = nn.Sequential(*[PlainBlock(i, o) for i, o in pairwise(widths)])

    def forward(self, v: Tensor) -> Tensor:
        return self.blocks(self.stem(v)).flatten(1)


class PlainEblvm(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = PlainFeatures()
        self.out = nn.Linear(16 * 8 * WIDTH, H)
        self.head = nn.Linear(2 * H, 16 * 4 * WIDTH)

    def forward(self, v: Tensor, h: Tensor) -> Tensor:
        f = self.out(self.features(v))
        return F.elu(self.head(torch.cat([f + h, h], 1))).pow(2).sum(1)


class PlainEbm(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = PlainFeatures()
        self.factors, self.squares = nn.Linear(16 * 8 * WIDTH, 2), nn.Linear(16 * 8 * WIDTH, 1)

    def forward(self, v: Tensor) -> Tensor:
        f = self.features(v)
        return self.factors(f)[:, 0] * self.factors(f)[:, 1] + self.squares(f**2)[:, 0]


class PlainPosterior(nn.Module):
    def __init__(self):
        super().__init__()
        channels = (SHAPE[0], 64, 128, 256)
        self.convs = nn.ModuleList(nn.Conv2d(i, o, 3, stride=2, padding=1) for i, o in pairwise(channels))
        self.mean, self.log_std = nn.Linear(4096, H), nn.Linear(4096, H)

    def forward(self, v: Tensor) -> tuple[Tensor, Tensor]:
        for conv in self.convs:
            v = F.leaky_relu(conv(v), 0.01)
        return self.mean(v.flatten(1)), self.log_std(v.flatten(1))


def start(model: Net) -> dict[str, Tensor]:
    return {k: p.double().requires_grad_() for k, p in model.initial(Key(5, 0)).items()}


def close(got: Tensor, expected: Tensor, name: str = "") -> None:
    assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max(), name


@pytest.mark.parametrize("visible", [False, True], ids=["eblvm", "ebm"])
@pytest.mark.parametrize(
    "options",
    [{}, {"checkpoint": "blocks"}, {"checkpoint": "all"}, {"channels_last": True}],
    ids=["plain", "blocks", "all", "channels_last"],
)
def test_equals_plain_layers(options: dict, visible: bool) -> None:
    """Compare energy, score, and the gradient of a score loss."""
    size = {"width": WIDTH, "depth": DEPTH, **options}
    energy = published(SHAPE, not visible, latent=H, **size)
    theta = start(energy)
    twin = (PlainEbm() if visible else PlainEblvm()).double()
    twin_theta = dict(zip(dict(twin.named_parameters()), theta.values(), strict=True))
    v = philox.uniform(Key(1, 0), 0, B, SHAPE, dtype=torch.float64).requires_grad_()
    eps = philox.normal(Key(1, 1), 0, B, SHAPE, dtype=torch.float64)
    h = () if visible else (philox.normal(Key(1, 2), 0, B, (H,), dtype=torch.float64),)
    results = []
    for e in (
        getattr(energy.at(theta), "free_energy" if visible else "energy")(v, *h),
        functional_call(twin, twin_theta, (v, *h)),
    ):
        (score,) = torch.autograd.grad(-e.sum(), v, create_graph=True)
        loss = 0.5 * (score + eps).square().sum()
        results.append((e, score, torch.autograd.grad(loss, list(theta.values()), materialize_grads=True)))
    ours, expected = results
    close(ours[0], expected[0])
    close(ours[1], expected[1])
    for name, got, wanted in zip(theta, ours[2], expected[2], strict=True):
        close(got, wanted, name)
    assert sum(bool(g.abs().max() > 0) for g in expected[2]) >= len(theta) - 1  # the EBM's last bias is a constant


def test_posterior_equals_plain_layers() -> None:
    """Compare mean, log std, the score of log q(h|v), and that score's derivative in phi."""
    posterior = StridedGaussian(SHAPE, H)
    phi = start(posterior)
    weight, bias = (phi[f"net.7.{name}"] for name in ("weight", "bias"))
    twin = PlainPosterior().double()
    linear = [weight[:H], bias[:H], weight[H:], bias[H:]]
    twin_phi = dict(zip(dict(twin.named_parameters()), [*list(phi.values())[:6], *linear], strict=True))
    v = philox.uniform(Key(1, 0), 0, B, SHAPE, dtype=torch.float64).requires_grad_()
    h = philox.normal(Key(1, 2), 0, B, (H,), dtype=torch.float64)
    results = []
    for p in (posterior.at(phi).params(v), functional_call(twin, twin_phi, (v,))):
        (score,) = torch.autograd.grad(posterior.log_prob(p, h).sum(), v, create_graph=True)
        results.append((*p, score, *torch.autograd.grad(score.square().sum(), list(phi.values()))))
    for got, expected in zip(*results, strict=True):
        close(got, expected)


@pytest.mark.parametrize("checkpoint", ["none", "blocks"])
def test_bf16_is_near_fp32(checkpoint: str) -> None:
    v, h = torch.rand(B, *SHAPE), torch.randn(B, H)
    results = []
    for precision in ("fp32", "bf16"):
        energy = published(SHAPE, latent=H, width=WIDTH, depth=DEPTH, checkpoint=checkpoint, precision=precision)
        theta, x = energy.initial(Key(5, 0)), v.clone().requires_grad_()
        (score,) = torch.autograd.grad(-energy.at(theta).energy(x, h).sum(), x)
        results.append(score)
    assert results[1].dtype == torch.float32
    assert 0 < (results[1] - results[0]).norm() < 0.05 * results[0].norm()


def test_initial_parameters_are_uniform_by_fan_in() -> None:
    """Check torch's default for linear and convolutional layers: every weight and bias in +-1/sqrt(fan in)."""
    energy = published(CIFAR10, latent=5, width=16, depth=12)
    theta = energy.initial(Key(0, 0))
    assert set(theta) == set(dict(energy.named_parameters()))
    for block in (theta["feature_net.blocks.4.first.conv.weight"], theta["feature_net.blocks.5.shortcut.conv.weight"]):
        bound = block[0].numel() ** -0.5
        assert 0.99 * bound < block.abs().max() <= bound
        assert abs(float(block.std()) - bound / 3**0.5) < 0.02 * bound
