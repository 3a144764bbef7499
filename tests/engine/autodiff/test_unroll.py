"""Memory modes of the unroll: equal gradients, and `recompute` keeps little more than phi and its moments per step."""

import weakref
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from eblvm.engine.autodiff.unroll import unroll
from eblvm.engine.methods.base import Nets
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.lower_level import Kl
from eblvm.engine.nets.grbm import GRBM
from eblvm.engine.nets.posteriors import Bernoulli
from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.sgd import Sgd
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

B, D, H = 200, 6, 5


class Saved:
    """A saved tensor; a weak set of these shows which ones the graph still keeps."""

    def __init__(self, tensor: Tensor):
        self.tensor = tensor


def unrolled(memory: str, N: int, sgd: bool, hidden: tuple[int, ...]) -> tuple[list[Tensor], int]:
    """Return (gradient of a function of phi_N for theta, bytes that the graph keeps after the unroll)."""
    adam = Adam()
    energy, posterior = GRBM(D, H), Bernoulli(D, H, hidden)
    nets = Nets(energy, posterior, phi_optimizer=adam)
    bism = Bism(K=1, N=N, divergence=Kl(), unroll_optimizer="sgd" if sgd else "adam", unroll_memory=memory)
    v = philox.normal(Key(0, 0), 0, B, (D,))
    theta = {k: p.requires_grad_() for k, p in energy.initial(Key(1, 0)).items()}
    phi = posterior.initial(Key(1, 0))
    live: weakref.WeakSet[Saved] = weakref.WeakSet()

    def pack(t: Tensor) -> Saved:
        saved = Saved(t)
        live.add(saved)
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        f = energy.at(theta).features(v)
        noise = [philox.logistic(Key(0, n), 0, B, (H,))[None] for n in range(N)]
        contexts = [(theta, f, v, torch.tensor(1.0), n, {"unroll": torch.tensor(0.01)}) for n in noise]
        start = (Sgd() if sgd else adam).init(phi)
        phi_N = unroll(partial(bism._unrolled_step, nets), start, contexts, memory).params
        kept = {s.tensor.untyped_storage().data_ptr(): s.tensor.untyped_storage().nbytes() for s in list(live)}
        value = sum(p.sin().sum() for p in phi_N.values())
    return list(torch.autograd.grad(value, list(theta.values()), materialize_grads=True)), sum(kept.values())


def test_recompute_refuses_to_be_differentiated_twice() -> None:
    x = torch.tensor(2.0, requires_grad=True)
    phi = unroll(lambda phi, c: {"p": phi["p"] * c**2}, {"p": torch.tensor(1.0)}, [x], "recompute")
    with pytest.raises(RuntimeError, match="has no second derivative of its own"):
        torch.autograd.grad(phi["p"], x, create_graph=True)


@pytest.mark.parametrize("hidden", [(), (8,)], ids=["linear", "mlp"])
@pytest.mark.parametrize("sgd", [False, True], ids=["adam", "sgd"])
def test_recompute_equals_store_and_keeps_less(sgd: bool, hidden: tuple[int, ...]) -> None:
    growth = {}
    for memory in ("store", "recompute"):
        (_, few), (gradient, many) = (unrolled(memory, N, sgd, hidden) for N in (2, 12))
        growth[memory] = (many - few) / 10
        if memory == "store":
            expected = gradient
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    widths = (D, *hidden, H)
    phi_bytes = 4 * sum((a + 1) * b for a, b in pairwise(widths))
    noise_bytes = 4 * B * H
    copies = 1 if sgd else 3  # phi, and with Adam its two moments
    assert growth["recompute"] <= copies * phi_bytes + noise_bytes + 64
    assert growth["recompute"] < 0.3 * growth["store"]
