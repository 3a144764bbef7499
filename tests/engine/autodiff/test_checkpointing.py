"""Second-order checkpointing: exact, with less memory, and an error where it does not apply."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from eblvm.engine.autodiff.checkpointing import checkpointed
from eblvm.engine.planning.footprint import Saved, Storages


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(6, 6, dtype=torch.float64) for _ in range(4))
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64) / 3

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def energy(blocks: list[Block], x: Tensor, how) -> Tensor:
    for block in blocks:
        x = how(block, x)
    return x.square().sum()


def loss_gradient(how) -> tuple[list[Tensor], int]:
    """Return the gradient of a score's loss, and the bytes that the graphs keep before its backward."""
    blocks = [Block() for _ in range(3)]
    parameters = [p for block in blocks for p in block.parameters()]
    x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(5, 6).requires_grad_()
    saved = Storages([x, *parameters])
    with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(saved, t), lambda s: s.tensor):
        (score,) = torch.autograd.grad(energy(blocks, x, how), x, create_graph=True)
        loss = (score - 1).square().sum()
    kept_bytes = saved.live
    return list(torch.autograd.grad(loss, parameters)), kept_bytes


def test_equals_the_plain_modules_and_keeps_less() -> None:
    plain, plain_bytes = loss_gradient(lambda block, x: block(x))
    cut, cut_bytes = loss_gradient(checkpointed)
    for a, b in zip(plain, cut, strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
    assert cut_bytes * 3 < plain_bytes


def test_nested_segments() -> None:
    class Outer(nn.Module):
        def __init__(self, inner: Block) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.inner.layers:
                x = x + torch.tanh(checkpointed(layer, x))
            return x

    plain, _ = loss_gradient(lambda block, x: block(x))
    nested, _ = loss_gradient(lambda block, x: checkpointed(Outer(block), x))
    for a, b in zip(plain, nested, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


def test_derivative_of_the_parameters_gradient() -> None:
    """Differentiate a function of the gradient for x, parameters and both, as an unrolled step does."""

    def second_order(how: Callable[..., Tensor], of_x: bool) -> list[Tensor]:
        block = Block()
        x = torch.linspace(-1, 1, 30, dtype=torch.float64).view(5, 6).requires_grad_()
        inputs = [*([x] if of_x else []), *block.parameters()]
        gradient = torch.autograd.grad(how(block, x).square().sum(), inputs, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in gradient), [x, *block.parameters()]))

    for of_x in (True, False):
        plain, cut = second_order(lambda block, x: block(x), of_x), second_order(checkpointed, of_x)
        for a, b in zip(plain, cut, strict=True):
            assert a.abs().max() > 0
            torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)


def test_a_third_derivative_raises() -> None:
    block = Block()
    x = torch.ones(5, 6, dtype=torch.float64, requires_grad=True)
    (score,) = torch.autograd.grad(checkpointed(block, x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="has no third derivative"):
        torch.autograd.grad(score.sum(), x, create_graph=True)


def test_torch_func_raises() -> None:
    block = Block()
    with pytest.raises(RuntimeError, match="plain autograd only"):
        torch.func.grad(lambda x: checkpointed(block, x).sum())(torch.ones(5, 6, dtype=torch.float64))
