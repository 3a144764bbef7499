"""Limits of torch that the design depends on. If a test fails here, torch has changed: review the design."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.engine.autodiff.test_checkpointing import loss_gradient

DIM = 6


@pytest.fixture
def layer():
    weight = torch.sin(torch.arange(DIM * DIM, dtype=torch.float64)).reshape(DIM, DIM)
    return lambda x: torch.tanh(x @ weight).sum()


@pytest.fixture
def x():
    return torch.cos(torch.arange(DIM, dtype=torch.float64))


def score_loss_gradient(energy, x, weight):
    """Return d/dweight |d energy/dx|^2, which has the form of every score matching gradient."""
    x = x.clone().requires_grad_()
    (score,) = torch.autograd.grad(energy(x, weight), x, create_graph=True)
    return torch.autograd.grad(score.square().sum(), weight)[0]


def test_func_grad_of_a_checkpoint_raises(layer, x):
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: checkpoint(layer, x, use_reentrant=False))(x)


def test_checkpoint_of_a_func_grad_raises(layer, x):
    with pytest.raises(RuntimeError, match="saved tensor hooks"):
        checkpoint(lambda x: torch.func.grad(layer)(x).sum(), x.requires_grad_(), use_reentrant=False)


def test_func_grad_refuses_saved_tensor_hooks(layer, x):
    with (
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t),
        pytest.raises(RuntimeError, match="saved tensor"),
    ):
        torch.func.grad(layer)(x)


def test_create_graph_through_checkpoint_is_exact(x):
    def energy(x, weight):
        return torch.tanh(x @ weight).square().sum()

    weight = torch.sin(torch.arange(DIM * DIM, dtype=torch.float64)).reshape(DIM, DIM).requires_grad_()
    plain = score_loss_gradient(energy, x, weight)
    checkpointed = score_loss_gradient(lambda x, w: checkpoint(energy, x, w, use_reentrant=False), x, weight)
    assert plain.abs().max() > 0
    assert torch.equal(plain, checkpointed)


def test_checkpoint_saves_next_to_nothing_through_a_score():
    """With create_graph=True the score pass recomputes the activations and its graph keeps them, so checkpointing.py
    is needed."""
    plain, plain_bytes = loss_gradient(lambda block, x: block(x))
    checkpointed, kept_bytes = loss_gradient(lambda block, x: checkpoint(block, x, use_reentrant=False))
    for a, b in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(b, a, rtol=1e-12, atol=1e-12)
    assert kept_bytes > 0.8 * plain_bytes


def test_create_graph_through_a_compiled_module_raises():
    module = torch.compile(torch.nn.Sequential(torch.nn.Linear(DIM, DIM), torch.nn.Tanh()), backend="aot_eager")
    x = torch.ones(2, DIM, requires_grad=True)
    (score,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        score.square().sum().backward()


def test_compile_of_the_whole_objective_gives_equal_gradients(x):
    def objective(weight):
        score = torch.func.grad(lambda x: torch.tanh(x @ weight).square().sum())(x)
        return score.square().sum()

    weight = torch.sin(torch.arange(DIM * DIM, dtype=torch.float64)).reshape(DIM, DIM)
    compiled = torch.compile(torch.func.grad(objective), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(weight), torch.func.grad(objective)(weight))


def test_func_grad_refuses_custom_op_with_register_autograd(x):
    @torch.library.custom_op("eblvm_limits::square", mutates_args=())
    def square(x: torch.Tensor) -> torch.Tensor:
        return x * x

    square.register_autograd(
        lambda ctx, g: 2 * g * ctx.saved_tensors[0],
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    leaf = x.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(square(leaf).sum(), leaf)[0], 2 * x)
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        torch.func.grad(lambda x: square(x).sum())(x)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info, in_dims, x):
        return Square.apply(x), in_dims[0]


def test_function_with_setup_context_under_grad_and_vmap(x):
    def energy(x):
        return Square.apply(x).sum()

    batch = torch.stack([x, 2 * x])
    assert torch.equal(torch.func.grad(energy)(x), 2 * x)
    assert torch.equal(torch.vmap(torch.func.grad(energy))(batch), 2 * batch)
    assert torch.equal(torch.func.grad(lambda x: torch.func.grad(energy)(x).square().sum())(x), 8 * x)


class SquareIntoBuffer(Square):
    @staticmethod
    def backward(ctx, g):
        out = torch.empty_like(g)
        out.numpy()[:] = 2 * g.detach().numpy() * ctx.saved_tensors[0].detach().numpy()  # as a fused kernel would
        return out


def test_backward_into_a_fresh_buffer_loses_the_second_derivative(x):
    """Show the danger that every kernel's second-order test guards against: no error, and a wrong gradient."""
    x.requires_grad_()
    (score,) = torch.autograd.grad(SquareIntoBuffer.apply(x).sum(), x, create_graph=True)
    assert torch.equal(score, 2 * x)
    loss = (score.square() + 0 * x).sum()  # the term 0*x represents the rest of the loss, which depends on x
    assert torch.equal(torch.autograd.grad(loss, x)[0], torch.zeros_like(x))  # it should be 8x


def test_adam_refuses_differentiable_with_fused():
    with pytest.raises(RuntimeError, match=r"fused.*does not support.*differentiable"):
        torch.optim.Adam([torch.ones(1, requires_grad=True)], differentiable=True, fused=True)


def test_differentiable_adam_is_nan_at_a_zero_second_moment():
    start = torch.zeros(1, requires_grad=True)
    weight = start.clone()
    weight.retain_grad()
    optimizer = torch.optim.Adam([weight], differentiable=True)
    weight.grad = 0.0 * start
    optimizer.step()
    weight.sum().backward()
    assert start.grad is not None
    assert start.grad.isnan().all()
