"""A deep step with few launches, as a GPU takes it, against the plain one in float64; and its launches' lists."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eblvm.engine.autodiff import collectives, convolution
from eblvm.engine.nets import deep
from eblvm.engine.recipes import recipe
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.engine.methods.started import drawn, first_step

TINY = recipe("cifar10").replaced(width=4, depth=12, latent=3, head_width=5, posterior_width=2, batch=6, K=1, N=0)


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append((func._schema.name.removeprefix("aten::"), args))
        return func(*args, **(kwargs or {}))

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    def casts_of_weights(self) -> int:
        given = [args[0] for called, args in self.calls if called == "_to_copy"]
        return sum(t.dim() == 4 and len(t) != TINY["batch"] for t in given)


def gradient(size: int = 16, **changes) -> tuple[dict[str, Tensor], Counted]:
    dtype = changes.get("dtype", "float64")
    method = {k: changes.pop(k) for k in ("method",) if k in changes}
    config = TINY.replaced(**method).replaced(**{"dtype": dtype, **changes})
    v = philox.uniform(Key(1, 0), 0, config["batch"], (3, size, size), dtype=getattr(torch, dtype))
    method, nets, state, v, _, rates = first_step(config, v)
    noise = drawn(method, nets, Key(2, 0), v)
    with torch.no_grad(), Counted() as seen:
        bars, _, info = method.gradient(nets)(state, v, noise, rates)
    return bars | {"loss": info["loss"]}, seen


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch):
    """Take the path of a GPU, by the references of its kernels."""

    def on() -> None:
        monkeypatch.setattr(deep, "joins_sums", lambda x: not torch._C._are_functorch_transforms_active())

    return on


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "mdsm"},
        {"method": "mdsm", "network": "published"},
        {"method": "mdsm", "channels_last": True},
        {"method": "ssm", "size": 8},
        {"method": "sm", "size": 8, "batch": 2, "width": 1},
        {"method": "bimdsm"},
        {"N": 2},
        {"N": 1, "unroll_memory": "recompute"},
        {"best_response": "newton"},
        {"method": "vages-mdsm"},
        {"micro_batch": 2},
    ],
    ids=str,
)
def test_equal_to_the_plain_step(changes, joined) -> None:
    plain, _ = gradient(**changes)
    joined()
    calls = []
    run = deep.ResNet.joined
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep.ResNet, "joined", lambda *a: (calls.append(0), run(*a))[1])
        found, _ = gradient(**changes)
    assert calls
    for name, g in plain.items():
        torch.testing.assert_close(found[name], g, rtol=1e-9, atol=1e-11 * float(g.abs().max()) + 1e-14)


def test_kernels_gradients_are_added_as_one_list(joined) -> None:
    joined()
    _, seen = gradient(method="mdsm")
    assert seen.count("_foreach_add") == 1


def test_16_bit_weights_are_cast_as_one_list(joined) -> None:
    plain, before = gradient(method="mdsm", precision="bf16", dtype="float32")
    joined()
    found, after = gradient(method="mdsm", precision="bf16", dtype="float32")
    assert before.casts_of_weights() > 20
    assert after.casts_of_weights() == 3  # folded kernels, which are products on a CPU
    assert after.count("_foreach_copy_") == 2
    whole, near = (torch.cat([g[name].flatten() for name in plain]) for g in (plain, found))
    assert (near - whole).norm() < 0.05 * whole.norm()


@pytest.mark.parametrize("size", [1, 2])
def test_with_several_processes_a_block_is_complete_when_backward_leaves_it(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collectives, "size", lambda: size)
    net = deep.ResNet((3, 16, 16), 3, 2, 12).to_empty(device="cpu").double()
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(i)))
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    parameters = dict(net.named_parameters())
    expected = torch.autograd.grad(net(x).square().sum(), list(parameters.values()))
    order: list[str] = []
    for name, p in parameters.items():
        p.register_hook(lambda g, name=name: order.append(name.rpartition(".")[0]))
    forward, seen = convolution._Convolve.backward, []

    def backward(ctx, g):
        seen.append(list(order))
        return forward(ctx, g)

    monkeypatch.setattr(convolution._Convolve, "backward", staticmethod(backward))
    got = torch.autograd.grad(net.joined(x, torch.float64).square().sum(), list(parameters.values()))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    assert ("blocks.5.first.conv" in seen[-1]) == (size == 2)  # before the stem's backward
