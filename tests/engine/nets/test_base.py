"""`Net.at`: a view of a net with other parameters, compared with torch's own `functional_call`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from eblvm.engine.nets.base import Energy, Net, Separable


class Coupling(nn.Module):
    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer

    def forward(self, f: Tensor, h: Tensor) -> Tensor:
        return (f * self.layer(h)).sum(-1)


class Counted(Energy):
    """An energy with a buffer, and with a module that is None."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.nothing = nn.Linear(3, 3), None
        self.register_parameter("absent", None)
        self.register_buffer("count", torch.tensor(2.0))

    def head(self, f: Tensor, h: Tensor) -> Tensor:
        return (self.count * self.layer(f) * h).sum(-1)

    forward = Energy.energy


def drawn(net: Net, buffers: bool = False) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    named = dict(net.named_parameters()) | (dict(net.named_buffers()) if buffers else {})
    return {name: torch.randn(x.shape, generator=generator, dtype=torch.float64) for name, x in named.items()}


def test_a_shared_layer_is_one_parameter_in_both_places() -> None:
    layer = nn.Linear(3, 3, bias=False)
    tied = Separable(layer, Coupling(layer))
    v, h = torch.ones(2, 3), torch.ones(2, 3)
    params = {name: torch.ones_like(p) for name, p in tied.named_parameters()}
    assert list(params) == ["feature_net.weight"]
    torch.testing.assert_close(tied.at(params).energy(v, h), torch.full((2,), 27.0))
    again = tied.at(params).at({name: 2 * p for name, p in params.items()})  # a view of a view
    torch.testing.assert_close(again.energy(v, h), torch.full((2,), 108.0))


@pytest.mark.parametrize("buffers", [False, True])
def test_a_view_is_functional_call(buffers: bool) -> None:
    net = Counted()
    params, (v, h) = drawn(net, buffers), torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(net.at(params).energy(v, h), functional_call(net, params, (v, h)))


def test_a_view_leaves_its_net_alone_and_outlives_others() -> None:
    net = Counted()
    own = dict(net.named_parameters())
    one = net.at(drawn(net))
    two = net.at({name: torch.zeros_like(p) for name, p in own.items()})
    assert type(one) is Counted
    assert all(p is own[name] for name, p in net.named_parameters())
    assert not torch.equal(one.layer.weight, two.layer.weight)
    assert one.count is net.count


def value(net: Net, how: str) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """Return the score at v, by a view or by functional_call."""

    def energy(params: dict[str, Tensor], x: Tensor) -> Tensor:
        h = torch.ones_like(x)
        return net.at(params).energy(x, h).sum() if how == "at" else functional_call(net, params, (x, h)).sum()

    return lambda params, v: torch.func.grad(energy, argnums=1)(params, v)


@pytest.mark.parametrize("transform", ["vmap", "grad of grad", "compile"])
def test_views_pass_through_transforms(transform: str) -> None:
    net, v = Counted(), torch.randn(4, 3, dtype=torch.float64)
    params = drawn(net, buffers=True)
    results = []
    for how in ("at", "functional_call"):
        f = value(net, how)
        if transform == "vmap":
            many = {name: torch.stack([p, 2 * p]) for name, p in params.items()}
            results.append(torch.vmap(f, (0, None))(many, v))
        elif transform == "grad of grad":
            square = torch.func.grad(lambda p, g=f: g(p, v).square().sum())
            results.append(square(params)["layer.weight"])
        else:
            torch._dynamo.reset()
            results.append(torch.compile(f, fullgraph=True)(params, v) if how == "at" else f(params, v))
    torch.testing.assert_close(*results)
