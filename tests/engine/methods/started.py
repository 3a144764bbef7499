"""A method with its nets, at the first step of a run or under way: what tests of gradients and of steps begin with."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from eblvm.engine.config import Config
from eblvm.engine.methods.base import Info, Method, Nets, Noise, Rates, Rows, State
from eblvm.engine.methods.bism import Bism
from eblvm.engine.methods.lower_level import Divergence
from eblvm.engine.optim.adam import Adam
from eblvm.engine.optim.base import Weights
from eblvm.engine.training.start import initial_state
from eblvm.engine.types import Params
from eblvm.kernels.philox import Key

BETAS = (0.9, 0.95)
ADAM = Adam(BETAS)


class Started(NamedTuple):
    """What a gradient reads."""

    method: Method
    nets: Nets
    state: State
    v: Tensor
    noise: Noise
    rates: Rates

    @property
    def given(self) -> tuple[State, Tensor, Noise, Rates]:
        """The arguments of a gradient and of a step."""
        return self.state, self.v, self.noise, self.rates

    def by_autograd(self) -> tuple[Params, State, Info]:
        with torch.no_grad():
            return self.method.gradient(self.nets)(*self.given)

    def in_chunks(self, size: int) -> tuple[Params, State, Info]:
        with torch.no_grad():
            return self.method.chunked(self.nets, size)(*self.given)

    def fused(self) -> tuple[Params, State, Info]:
        gradient = self.method.fused(self.nets, self.v.device, self.v.dtype)
        assert gradient is not None
        with torch.no_grad():
            return gradient(*self.given)


def drawn(method: Method, nets: Nets, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Noise:
    return method.draw(nets, key, Rows.of(key, v, first, total))


def rates_of(lr: float, dtype: torch.dtype = torch.float64, replicas: tuple[int, ...] = (), **own: float) -> Rates:
    """Return one learning rate for everything, but for those given by name."""
    return {name: torch.full(replicas, own.get(name, lr), dtype=dtype) for name in ("theta", "phi", "unroll")}


def cast(tree: Any, dtype: torch.dtype = torch.float64) -> Any:
    return tree_map(lambda t: t.to(dtype), tree)


def counted(weights: Weights, step_count: float, replicas: tuple[int, ...] = ()) -> Weights:
    """Return weights after so many steps, in every replica."""
    count = torch.full(replicas, step_count, dtype=weights.moments.step_count.dtype)
    return weights._replace(moments=weights.moments._replace(step_count=count))


def under_way(
    weights: Weights, step_count: float, m: float = 0.0, v: float = 0.0, replicas: tuple[int, ...] = ()
) -> Weights:
    """Return weights with moments as after some steps: the derivative of Adam's first step is that of a sign."""
    m_, v_ = ({k: torch.full_like(p, value) for k, p in weights.params.items()} for value in (m, v))
    weights = weights._replace(moments=weights.moments._replace(m=m_, v=v_))
    return counted(weights, step_count, replicas)


def bism_of(
    K: int, N: int, divergence: Divergence, *, shared: bool, sgd: bool, unroll_lr: float | None, memory: str = "store"
) -> Bism:
    return Bism(
        K=K,
        N=N,
        divergence=divergence,
        noise="shared" if shared else "fresh",
        unroll_optimizer="sgd" if sgd else "adam",
        unroll_lr=unroll_lr,
        unroll_memory=memory,
    )


def first_step(config: Config, v: Tensor) -> Started:
    """Return the first step of a run on the batch v, with the run's own start, noise and learning rates."""
    config.check()
    seeds, method = config.optimisation.seeds(), config.method
    nets = method.nets(config, v[0] if config.replicated else v)
    state = initial_state(config, nets, seeds, v)
    rates = config.optimisation.rates(0, method.rates(), v)
    return Started(method, nets, state, v, drawn(method, nets, Key(seeds, 0), v), rates)


def assert_trees_close(found: Any, expected: Any, **tolerance: float) -> None:
    tree_map(lambda a, b: torch.testing.assert_close(a, b, **tolerance), found, expected)
