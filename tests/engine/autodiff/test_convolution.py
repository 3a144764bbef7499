"""A convolution with derivatives of its own against torch's: values, two orders, layouts, and peak memory."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from eblvm.engine.autodiff import convolution
from eblvm.engine.autodiff.convolution import Convolution, convolve
from eblvm.engine.planning.footprint import footprint

# Batch, channels in and out, size of the image, of the kernel, stride, padding.
SIZES = [
    (3, 2, 4, 5, 3, 1, 1),
    (2, 3, 2, 10, 4, 2, 1),
    (3, 2, 4, 4, 3, 1, 1),  # results of few pixels, by products
    (2, 3, 2, 8, 4, 2, 1),
    (2, 3, 2, 3, 2, 1, 1),
    (2, 3, 2, 4, 1, 1, 0),
    (2, 3, 2, 4, 3, 1, 0),
    (2, 3, 2, 7, 3, 2, 1),
    (2, 3, 2, 6, 3, 2, 0),  # a last row that no kernel position reaches
    (2, 3, 2, 11, 4, 2, 1),
]


@pytest.fixture(autouse=True)
def products_of_small_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "MANY_CHANNELS", 1)


def arguments(
    batch: int, inputs: int, outputs: int, size: int, kernel: int, stride: int, padding: int, dtype=torch.float64
) -> tuple[Tensor, Tensor, Tensor, tuple[int, int], tuple[int, int]]:
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, inputs, size, size), (outputs, inputs, kernel, kernel), (outputs,)
    x, w, b = (torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes)
    return x, w, b, (stride, stride), (padding, padding)


def both_orders(conv, x: Tensor, w: Tensor, b: Tensor | None, *place) -> list[Tensor]:
    """Return the value, its gradients, and those of a loss of the input's gradient, such as a score's."""
    known = [t for t in (x, w, b) if t is not None]
    y = conv(x, w, b, *place)
    first = torch.autograd.grad(y.sin().sum(), known, retain_graph=True)
    (score,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
    second = torch.autograd.grad(score.cos().sum(), known)
    return [y, *first, *second]


def assert_as_torch(*given) -> None:
    for actual, expected in zip(both_orders(convolve, *given), both_orders(F.conv2d, *given), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_equal_to_torch(size: tuple[int, ...], bias: bool) -> None:
    x, w, b, *place = arguments(*size)
    assert_as_torch(x, w, b if bias else None, *place)


@pytest.mark.parametrize("size", [4, 5])
def test_empty_batch(size: int) -> None:
    x, w, b, *place = arguments(0, 3, 2, size, 3, 1, 1)
    y = convolve(x, w, b, *place)
    assert y.shape == (0, 2, size, size)
    assert [float(g.abs().sum()) for g in torch.autograd.grad(y.sum(), (x, w, b))] == [0, 0, 0]


@pytest.mark.parametrize("size", SIZES[:5])
def test_gradcheck(size: tuple[int, ...]) -> None:
    x, w, b, *place = arguments(*size)
    assert gradcheck(lambda x, w, b: convolve(x, w, b, *place), (x, w, b))
    assert gradgradcheck(lambda x, w, b: convolve(x, w, b, *place), (x, w, b))


@pytest.mark.parametrize("size", SIZES[:5])
def test_channels_last(size: tuple[int, ...]) -> None:
    x, w, b, *place = arguments(*size)
    rows = [t.detach().contiguous(memory_format=torch.channels_last).requires_grad_() for t in (x, w)]
    for actual, expected in zip(
        both_orders(convolve, *rows, b, *place), both_orders(F.conv2d, x, w, b, *place), strict=True
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
    assert convolve(*rows, b, *place).stride() == F.conv2d(*rows, b, *place).stride()


def test_torch_func() -> None:
    x, w, b, *place = (t.detach() if isinstance(t, Tensor) else t for t in arguments(*SIZES[0]))

    def loss(w: Tensor, x: Tensor) -> Tensor:
        score = torch.func.grad(lambda x: convolve(x, w, b, *place).sin().sum())(x)
        return score.cos().sum()

    actual = torch.func.vmap(torch.func.grad(loss), (None, 0))(w, torch.stack([x, 2 * x]))
    for one, scale in zip(actual, (1, 2), strict=True):
        torch.testing.assert_close(one, torch.func.grad(loss)(w, scale * x))


@pytest.mark.parametrize("size", [SIZES[0], SIZES[2]])
def test_batched_backward(size: tuple[int, ...]) -> None:
    x, w, b, *place = arguments(*size)

    def curvatures(conv) -> list[Tensor]:
        (score,) = torch.autograd.grad(conv(x, w, b, *place).sin().sum(), x, create_graph=True)
        directions = torch.stack([torch.ones_like(x), x.detach()])
        products = torch.vmap(lambda u: torch.autograd.grad(score, x, u, create_graph=True)[0])(directions)
        return [products, *torch.autograd.grad(products.cos().sum(), (x, w, b))]

    for actual, expected in zip(curvatures(convolve), curvatures(F.conv2d), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_autocast_as_torch() -> None:
    x, w, b, *place = arguments(*SIZES[0], dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        actual, expected = (both_orders(conv, x, w, b, *place) for conv in (convolve, F.conv2d))
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=0.03, atol=0.03)


def test_batches_of_gradients() -> None:
    x, w, b, *place = arguments(*SIZES[2])
    many = torch.stack([torch.ones(3, 4, 4, 4), torch.rand(3, 4, 4, 4)]).double()
    values = (conv(x, w, b, *place) for conv in (convolve, F.conv2d))
    actual, expected = (torch.autograd.grad(y, (x, w, b), many, is_grads_batched=True) for y in values)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("batch", "outputs"), [(1, 3), (3, 1), (3, 3)])
def test_results_are_no_views(batch: int, outputs: int) -> None:
    """Check for views: an operation in place on one fails, only for some batch sizes."""
    x, w, b, *place = arguments(batch, 2, outputs, 4, 3, 1, 1)
    y = convolve(x, w, b, *place)
    assert not y._is_view()
    y.relu_().sum().backward()
    assert not x.grad._is_view()


def test_rectangles() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 7, 4), (4, 3, 4, 2), (4,)
    x, w, b = (torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes)
    for place in (((2, 1), (1, 0)), ((3, 2), (0, 1)), ((1, 3), (0, 0))):
        assert_as_torch(x, w, b, *place)


def test_errors_are_torchs() -> None:
    x, w, b, *place = arguments(2, 3, 2, 2, 5, 1, 1)
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        convolve(x, w, b, *place)
    with pytest.raises(RuntimeError, match=r"expected input.* to have 3 channels"):
        convolve(x[:, :2], w, b, *place)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the gradients that the library computes, in order."""
    asked: list[str] = []
    library = convolution._library

    def counted(wanted: list[bool], *args) -> tuple[Tensor | None, ...]:
        asked.extend(name for name, want in zip(("x", "w", "b"), wanted, strict=True) if want)
        return library(wanted, *args)

    monkeypatch.setattr(convolution, "_library", counted)
    return asked


def test_the_score_pass_leaves_the_weight_alone(passes: list[str]) -> None:
    x, w, b, *place = arguments(*SIZES[0])
    (score,) = torch.autograd.grad(convolve(x, w, b, *place).sin().sum(), x, create_graph=True)
    assert passes == ["x"]
    torch.autograd.grad(score.cos().sum(), w)
    assert sorted(passes) == ["w", "w", "x"]  # through the score pass, and through the cosine's own argument


def test_no_copies_of_images_in_the_second_order() -> None:
    """Compare peaks with torch's own convolution, which copies the image and its cotangent twice."""

    def peak(conv) -> int:
        x, w, b, *place = arguments(8, 16, 16, 32, 3, 1, 1, dtype=torch.float32)
        (score,) = torch.autograd.grad(conv(x, w, b, *place).sin().sum(), x, create_graph=True)
        step = lambda: torch.autograd.grad(score, w, torch.ones_like(x), retain_graph=True) and None  # noqa: E731
        return footprint(step, lambda: [x, w, b, score], hooks=False).peak_bytes

    image = 8 * 16 * 32 * 32 * 4
    assert peak(F.conv2d) - peak(convolve) >= 2 * image


@pytest.mark.parametrize(("channels", "library"), [(6, {"x", "w", "b"}), (8, set())])
def test_large_kernels_are_multiplied(channels: int, library: set[str], passes: list[str], monkeypatch) -> None:
    monkeypatch.setattr(convolution, "MANY_CHANNELS", 7)
    x, w, b, *place = arguments(2, channels, channels, 4, 3, 1, 1)
    assert_as_torch(x, w, b, *place)
    assert set(passes) == library


def test_module_is_the_function() -> None:
    module = Convolution(2, 3, 4, stride=2, padding=1, dtype=torch.float64)
    x = torch.randn(2, 2, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(module(x), F.conv2d(x, module.weight, module.bias, 2, 1))


def compiled_score_loss(kept: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[tuple[Tensor, ...], dict[str, int]]:
    """Return the gradient of a loss of a score through two convolutions, compiled, and the operators of its graph."""
    from torch._dynamo.backends.common import aot_autograd

    monkeypatch.setattr(convolution, "_in_graph", None)
    monkeypatch.setattr(convolution, "MANY_CHANNELS", 512)
    if kept:
        convolution.keep_in_graphs()
    operators: dict[str, int] = {}

    def seen(graph, _):
        for node in graph.graph.nodes:
            operators[str(node.target)] = operators.get(str(node.target), 0) + 1
        return graph

    x, first, bias, stride, padding = arguments(3, 2, 2, 6, 3, 1, 1)
    second = arguments(3, 2, 2, 6, 4, 2, 1)[1] * 0.5

    def gradient(x: Tensor, first: Tensor, second: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        def loss(weights: tuple[Tensor, ...]) -> Tensor:
            def energy(x: Tensor) -> Tensor:
                y = torch.nn.functional.silu(convolve(x, weights[0], weights[2], stride, padding))
                return convolve(y, weights[1], weights[2], (2, 2), padding).square().sum()

            return torch.func.grad(energy)(x).square().sum()

        return torch.func.grad(loss)((first, second, bias))

    given = [t.detach() for t in (x, first, second, bias)]
    with torch.no_grad():
        run = torch.compile(gradient, backend=aot_autograd(fw_compiler=seen), dynamic=False, fullgraph=True)
        found, expected = run(*given), gradient(*given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    return found, operators


def test_the_compiler_keeps_both_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the forward passes of a graph: one for the value and one for a derivative, none of transposed images."""
    own, kept = compiled_score_loss(False, monkeypatch)
    found, ours = compiled_score_loss(True, monkeypatch)
    torch.testing.assert_close(found, own, rtol=1e-10, atol=1e-10)
    assert kept["aten.convolution.default"] == 6
    assert ours["aten.convolution.default"] == 4
    assert ours["aten.convolution_backward.default"] == 7
