"""Models as functions of their parameters, also where parts of one share a tensor."""

import torch
from torch import Tensor, nn

from eblvm.engine.models.energy import Separable, call


class Coupling(nn.Module):
    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.layer = layer

    def forward(self, f: Tensor, h: Tensor) -> Tensor:
        return (f * self.layer(h)).sum(-1)


def test_a_shared_layer_is_one_parameter_in_both_places() -> None:
    layer = nn.Linear(3, 3, bias=False)
    tied, free = (Separable(layer, Coupling(other)) for other in (layer, nn.Linear(3, 3, bias=False)))
    assert (tied.ties, free.ties) == (True, False)
    v, h = torch.ones(2, 3), torch.ones(2, 3)
    params = {name: torch.ones_like(p) for name, p in tied.named_parameters()}
    assert list(params) == ["feature_net.weight"]
    torch.testing.assert_close(call(tied, params, "energy", v, h), torch.full((2,), 27.0))
