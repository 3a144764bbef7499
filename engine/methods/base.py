"""The contract of a training method, and what methods pass to each other.

Noise and data have the sample axis first (after the replicas'), so a chunk or a shard of a step is a slice of its
leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch

from eblvm.engine import autodiff, nets
from eblvm.engine.optim.base import Moments, Optimizer, Weights
from eblvm.engine.optim.sgd import Sgd
from eblvm.engine.options import Options
from eblvm.engine.types import Params

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.config import Config
    from eblvm.engine.nets import Energy, Net, Posterior
    from eblvm.engine.nets.bidvl import Generator
    from eblvm.kernels.philox import Key

Info = dict[str, "Tensor"]  # what is logged, on the device
Noise = dict[str, Any]  # by what it is for: tensors [B, ...], or lists of them
Rates = dict[str, "Tensor"]  # 0-dimensional learning rates: "theta", "phi", "unroll"; in fp16 "scale", of gradients


class State(NamedTuple):
    """Everything that training changes; with replicas every tensor has a leading replica axis."""

    theta: Weights
    phi: Weights  # empty where a method has no posterior
    chain: Params = {}  # persistent Markov chains  # noqa: RUF012
    scale: Params = {}  # of the loss in fp16  # noqa: RUF012
    buffers: Params = {}  # what nets have besides parameters: running statistics, spectral vectors  # noqa: RUF012


def empty_weights() -> Weights:
    """Return the weights of a net without parameters."""
    return Sgd().init({})


@dataclass(frozen=True)
class Nets:
    """The modules of a run and the optimiser of q. They are static: closed over, never part of a vmapped tree."""

    energy: Energy
    posterior: Posterior = field(default_factory=lambda: nets.Posterior())  # the empty one of a method that learns no q
    generator: Generator = field(default_factory=lambda: nets.Net())  # type: ignore[assignment]
    phi_optimizer: Optimizer = field(default_factory=Sgd)  # of real steps; unrolled ones clip nothing

    @property
    def unroll_optimizer(self) -> Optimizer:
        return replace(self.phi_optimizer, clip_norm=None)


class Rows(NamedTuple):
    """The samples whose noise is drawn: first .. first + samples - 1 of a global batch of `total`, in every replica."""

    samples: int
    shape: tuple[int, ...]  # of one sample
    total: int
    replicas: tuple[int, ...]
    place: dict[str, Any]  # what every Philox distribution takes: first, dtype and device

    @classmethod
    def of(cls, key: Key, v: Tensor, first: int = 0, total: int | None = None) -> Rows:
        """Return the rows of a batch v [*replicas, B, ...]; with no `total` it ends with them."""
        axes = torch.as_tensor(key.seed).dim()
        samples = v.shape[axes]
        place = {"first": first, "dtype": v.dtype, "device": v.device}
        return cls(samples, tuple(v.shape[axes + 1 :]), total or first + samples, tuple(v.shape[:axes]), place)


class Gradient(Protocol):
    """The gradient of theta, the state with everything else moved, and what is logged. With `finish`, which only
    methods that `overlap` call, each parameter's gradient is handed over as soon as backward has completed it: several
    processes then reduce it while backward goes on."""

    def __call__(
        self, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]: ...


TrainingStep = Callable[[State, "Tensor", Noise, Rates], "tuple[State, Info]"]


class Method(Options):
    """A training method. Functions of `nets` return pure functions of tensors."""

    group = "method"
    learns_q: ClassVar[bool] = False  # it has a posterior q(h|v; phi), of a model with latent units
    needs_conditionals: ClassVar[bool] = False  # it needs p(h|v), p(v|h) or the free energy in closed form
    pairs_samples: ClassVar[bool] = False  # its loss is of pairs of samples: an even batch
    compiles: ClassVar[bool] = True
    generates: ClassVar[bool] = False  # it trains a generator
    plans: ClassVar[bool] = False  # `eblvm plan` can count its step
    alternates: ClassVar[bool] = False  # it moves theta before phi, and has a step of its own
    overlaps: ClassVar[bool] = False  # its gradients call `finish`
    diagnoses: ClassVar[bool] = False  # it has `diagnostics`
    micro_batches: ClassVar[bool] = False  # its gradient can be computed in chunks
    energy_limit: ClassVar[float | None] = None  # above which logged energies have run away

    @property
    def blur(self) -> float:
        """The noise level of the density that the model learns; 0: that of the data itself."""
        return 0.0

    def rates(self) -> dict[str, float | None]:
        """Return the learning rates of its own, of "phi" and "unroll"; none: those of theta and phi."""
        return {}

    def nets(
        self, config: Config, data: Tensor, energy: Energy | None = None, posterior: Posterior | None = None
    ) -> Nets:
        """Return the modules for samples like `data` [n, ...]: those of the model, or those given."""
        raise NotImplementedError

    def init(self, nets: Nets, key: Key, v: Tensor, optimizer: Optimizer) -> State:
        """Return the state at the start of a run whose first batch is v; `optimizer` is theta's."""
        return State(optimizer.init(nets.energy.initial(key)), empty_weights())

    def blank(self, nets: Nets, optimizer: Optimizer, dtype: torch.dtype) -> State:
        """Return a state of the right shapes on the meta device."""
        phi = parameters(nets.posterior, dtype)
        weights = nets.phi_optimizer.init(phi) if phi else empty_weights()
        return State(optimizer.init(parameters(nets.energy, dtype)), weights)

    def draw(self, nets: Nets, key: Key, rows: Rows) -> Noise:
        """Return all noise of a step."""
        raise NotImplementedError

    def gradient(self, nets: Nets) -> Gradient:
        """Return the specification of a step's gradient."""
        return partial(self._gradient, nets)

    def _gradient(
        self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates, finish: autodiff.Finish | None = None
    ) -> tuple[Params, State, Info]:
        raise NotImplementedError

    def chunked(self, nets: Nets, size: int) -> Gradient:
        """Return the same gradient with no more than `size` samples in the networks at once."""
        raise NotImplementedError

    def fused(self, nets: Nets, device: torch.device, dtype: torch.dtype) -> Gradient | None:
        """Return the same gradient without autograd, for tensors with or without replica axes; None without one."""
        return None

    def alternating(self, nets: Nets, optimizer: Optimizer, size: int | None, in_place: bool) -> TrainingStep:
        """Return the whole step of a method that `alternates`."""
        raise NotImplementedError

    def validation(self, nets: Nets, state: State, v: Tensor, noise: Noise, size: int | None = None) -> Tensor:
        """Return the method's own loss at fixed noise without any step, to choose the best model by; in chunks."""
        raise NotImplementedError

    def diagnostics(self, nets: Nets, state: State, v: Tensor, noise: Noise) -> Info:
        """Return further losses of a state, for its evaluation."""
        return {}

    # What a method that `generates` has, at the running statistics of a trained run.

    def encoded(self, nets: Nets, state: State, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation of q(h|v)."""
        raise NotImplementedError

    def decode(self, nets: Nets, state: State, h: Tensor) -> Tensor:
        """Return G(h)."""
        raise NotImplementedError

    def marginal_energy(self, nets: Nets, state: State, v: Tensor) -> Tensor:
        """Return E(v) [B]."""
        raise NotImplementedError

    def encode(self, nets: Nets, state: State, v: Tensor) -> Tensor:
        """Return the mean of q(h|v)."""
        return self.encoded(nets, state, v)[0]

    def reconstruct(self, nets: Nets, state: State, v: Tensor) -> Tensor:
        """Return G(mean of q(h|v))."""
        return self.decode(nets, state, self.encode(nets, state, v))

    def graph(self, nets: Nets, state: State, v: Tensor, noise: Noise, rates: Rates) -> Any:
        """Return the loss with the graph that a step has when its backward begins, for a plan to count."""
        raise NotImplementedError


def parameters(net: Net, dtype: torch.dtype) -> Params:
    """Return tensors like the parameters of a net, on the meta device."""
    return {name: blank(p, dtype) for name, p in net.named_parameters()}


def blank(p: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(p.shape, dtype=dtype, device="meta")


def sliced(tree: Any, first: int, count: int) -> Any:
    """Return `count` rows of every leaf of a tree."""
    return autodiff.tree_map(lambda x: x.narrow(0, first, count), tree)


def to_tree(state: State) -> dict[str, Any]:
    """Return the state as dicts; a method without a posterior has an empty phi."""
    theta, phi = state.theta, state.phi
    return {
        "theta": theta.params,
        "phi": phi.params,
        "theta_opt": theta.moments._asdict(),
        "phi_opt": phi.moments._asdict() if phi.params else (),
        "chain": state.chain,
        "ema": theta.average,
        "scale": state.scale,
        "buffers": state.buffers,
        "phi_ema": phi.average,
    }


def from_tree(tree: dict[str, Any], device: torch.device, dtype: torch.dtype | None = None) -> State:
    """Return the state on a device, and of a type if one is given."""
    placed = _placed(tree, device, dtype)
    theta = Weights(placed["theta"], _moments(placed["theta_opt"]), placed["ema"])
    phi = Weights({}, Moments({}, {}, torch.zeros_like(theta.moments.step_count)))  # with its replica axis
    if placed["phi"]:
        phi = Weights(placed["phi"], _moments(placed["phi_opt"]), placed.get("phi_ema", {}))
    return State(theta, phi, placed["chain"], placed["scale"], placed.get("buffers", {}))


def _moments(tree: Any) -> Moments:
    """Return the moments of an optimiser; `taken` is what format 1 called the step count."""
    if not tree:  # an exported model has none
        return empty_weights().moments
    named = {"step_count" if name == "taken" else name: value for name, value in tree.items()}
    return Moments(**named)


def _placed(value: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    if isinstance(value, dict):
        return {k: _placed(v, device, dtype) for k, v in value.items()}
    return value.to(device, dtype) if isinstance(value, torch.Tensor) else value
