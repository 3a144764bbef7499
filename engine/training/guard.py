"""Stop a run: for a model that does not fit, for broken numbers before they overwrite good ones, and at signals."""

import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from eblvm.engine.autodiff import collectives
from eblvm.engine.config import Config
from eblvm.engine.errors import DivergedError, UserError
from eblvm.engine.machine import ENDINGS, device_memory
from eblvm.engine.methods.base import Nets, State
from eblvm.engine.planning import plan
from eblvm.engine.types import Params

COPIES = 4  # at least: parameters, Adam's two moments, a gradient
UNCOUNTABLE = ("overflow", "too large", "Storage size", "numel", "int64")  # how torch says that no index is enough
LIMIT = 1e9  # no loss, gradient norm or parameter of a healthy run is near it
Q_LIMIT = 1e4  # logits, means and log standard deviations of a q that says anything are far below
UNBOUNDED = ("moments", "buffers")  # squares of gradients may be large in health; NaN and infinity are not
RUNAWAY = "--upper hinge --output real, a smaller --ratio, or a smaller --lr"

ADVICE = {
    "loss": "a smaller --lr, --clip-norm 1, or a larger noise level --sigma",
    "lower": "a smaller --lower-lr, or --divergence kl-exact",
    "langevin": "a smaller --langevin-alpha, or fewer steps --C",
    "gradient_norm": "a smaller --lr; with unrolled steps a smaller --unroll-lr or fewer --N",
    "theta": "a smaller --lr or --clip-norm 1",
    "phi": "a smaller --lower-lr, or --divergence kl-exact",
    "moments": "a smaller --lr, or --clip-norm 1",
    "buffers": "a smaller --lr",
    "ema": "a smaller --lr or --clip-norm 1",
    "chain": "a smaller --lr, or fewer --sweeps",
    "q": "a smaller --lower-lr, or --divergence kl-exact: q(h|v) is not one that any model has",
    "energy_data": RUNAWAY,
    "energy_model": RUNAWAY,
}


def check(
    step: int,
    quantities: dict[str, list[float]],
    kept: Callable[[], int | None] = lambda: None,
    energy_limit: float | None = None,
) -> None:
    """Raise `DivergedError` naming the first broken quantity (and replica) of `quantities`, values by replica.

    `kept` gives the step of the newest checkpoint on disk; it is asked when something is broken."""
    for name, values in quantities.items():
        for replica, value in enumerate(values):
            limit = math.inf if name in UNBOUNDED else LIMIT
            if name == "q":
                limit = Q_LIMIT
            if energy_limit and name.startswith("energy"):
                limit = energy_limit
            if math.isfinite(value) and abs(value) < limit:
                continue
            where = f" of replica {replica}" if len(values) > 1 else ""
            good = kept()
            said = f"the checkpoint of step {good} is kept" if good is not None else "no checkpoint was made yet"
            raise DivergedError(
                f"stopped at step {step}: {name}{where} is {value}; {said}. Try {ADVICE.get(name, 'a smaller --lr')}."
            )


def sizes(state: State, replicated: bool) -> dict[str, list[float]]:
    largest = torch.vmap(magnitude) if replicated else magnitude
    return {name: torch.atleast_1d(largest(x)).tolist() for name, x in watched(state).items()}


def watched(state: State) -> dict[str, Params]:
    """Return what may break: parameters, moments and averages, and what nets have besides parameters."""
    moments = {
        f"{who}.{kind}.{name}": p
        for who, weights in (("theta", state.theta), ("phi", state.phi))
        for kind, tree in (("m", weights.moments.m), ("v", weights.moments.v))
        for name, p in tree.items()
    }
    parts = {"theta": state.theta.params, "phi": state.phi.params, "moments": moments, "buffers": state.buffers}
    parts |= {"ema": state.theta.average, "chain": state.chain}
    return {name: tree for name, tree in parts.items() if tree}


def q_sizes(nets: Nets, state: State, v: Tensor) -> list[float]:
    """Return the largest magnitude among q's outputs at v, by replica; none where a method has no q of its own."""
    phi, expected = state.phi.params, dict(nets.posterior.named_parameters())
    if not phi or phi.keys() != expected.keys():
        return []
    name = next(iter(expected))
    replicated = phi[name].dim() > expected[name].dim()
    phis = [{k: p[r] for k, p in phi.items()} for r in range(len(phi[name]))] if replicated else [phi]
    with torch.no_grad():
        outputs = [tree_leaves(nets.posterior.at(one).params(v)) for one in phis]
    return [float(torch.stack([x.abs().max() for x in parts]).max()) for parts in outputs]


def magnitude(tree: Params) -> Tensor:
    """Return the largest absolute entry; NaN if there is one."""
    return torch.stack([p.abs().max() for p in tree.values()]).max()


@contextmanager
def explained(config: Config, shape: tuple[int, ...]) -> Iterator[None]:
    """Turn torch's errors about sizes and memory into ones that say which setting needs less."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError) as error:
        said = str(error).partition("\n")[0]
        if isinstance(error, RuntimeError) and plan.out_of_memory(error):
            advice = plan.next_smaller(config, shape, collectives.size())
            raise UserError(f"out of memory: {advice}") from error
        if not any(word in str(error) for word in UNCOUNTABLE):
            raise
        raise UserError(
            f"a layer of this model has too many parameters to count ({said[:80]}); use smaller --width, --latent and "
            "the like"
        ) from None


def check_memory(config: Config, nets: Nets) -> None:
    """Refuse parameters that with their gradient and moments take more than the memory, for all replicas."""
    replicas = config.optimisation.replicas * len(config.optimisation.lr)
    count = sum(math.prod(p.shape) for net in (nets.energy, nets.posterior, nets.generator) for p in net.parameters())
    each = 8 if config.running.dtype == "float64" else 4
    needed, limit = count * replicas * each * COPIES, device_memory(config.running.device)
    if needed > limit:
        of = f" x {replicas} replicas" if replicas > 1 else ""
        raise UserError(
            f"this model has {count:,} parameters{of}, which take {_gib(needed)} with gradient and moments; the limit "
            f"is the {_gib(limit)} of {config.running.device}: use a smaller --width or --latent, or fewer replicas"
        )


def _gib(count: int) -> str:
    return f"{count / 2**30:,.1f} GiB"


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Collect the signals that end a run, which the loop reads between steps; a second SIGINT ends at once."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {s: signal.signal(s, note) for s in ENDINGS}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
