"""Batch normalisation: equal to torch's layer in training and in evaluation, running statistics included."""

import torch
from torch.func import functional_call

from eblvm.engine.nets.batch_norm import BatchNorm, Sequence, blended


def test_training_and_evaluation_are_torchs() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.BatchNorm2d(3).double()
    own = Sequence(BatchNorm(3))
    parameters = {"0.weight": torch.rand(3).double(), "0.bias": torch.randn(3).double()}
    theirs.load_state_dict({"weight": parameters["0.weight"], "bias": parameters["0.bias"]}, strict=False)
    buffers = {"net.0.mean": torch.zeros(3).double(), "net.0.var": torch.ones(3).double()}
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5).double() * 3 + 1
        seen: list[torch.Tensor] = []
        torch.testing.assert_close(functional_call(own, parameters, (x, seen)), theirs(x))
        buffers = blended(buffers, "net.", own, seen)
    torch.testing.assert_close(buffers["net.0.mean"], theirs.running_mean)
    torch.testing.assert_close(buffers["net.0.var"], theirs.running_var)
    theirs.eval()
    own_buffers = {name.removeprefix("net."): b for name, b in buffers.items()}
    torch.testing.assert_close(functional_call(own, parameters | own_buffers, (x, None)), theirs(x))


def test_second_derivative() -> None:
    norm = BatchNorm(2)
    x = torch.randn(3, 2, 2, 2, dtype=torch.float64, requires_grad=True)
    parameters = {"weight": torch.rand(2).double(), "bias": torch.rand(2).double()}
    assert torch.autograd.gradgradcheck(lambda x: functional_call(norm, parameters, (x, [])), (x,))
