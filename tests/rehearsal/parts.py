"""What surrounds a training step, on fake cuda tensors: sampling, likelihoods, validation, the critic.

Here a wait for the device is no fault; a tensor on the wrong device is.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves

from eblvm.bench.contestants.steps import CaseStep, NaiveStep, published
from eblvm.bench.measurements import deep as deep_suite
from eblvm.bench.measurements import kernels as kernels_suite
from eblvm.bench.tools.floor import FloorStep
from eblvm.bench.tools.registry import Case
from eblvm.engine.config import Config
from eblvm.engine.evaluation.metrics.importance_likelihood import importance_weighted
from eblvm.engine.evaluation.metrics.likelihood import ais
from eblvm.engine.evaluation.studies.fisher_critic import fisher_divergence
from eblvm.engine.methods.base import Rows
from eblvm.engine.methods.vages import Vages
from eblvm.engine.recipes import recipe
from eblvm.engine.sampling.gibbs import gibbs, uniform_start
from eblvm.engine.sampling.langevin import joint_score, langevin
from eblvm.engine.sampling.starts import normal_start
from eblvm.kernels import adam_unroll, grbm_bilevel
from eblvm.kernels.adam_unroll import Rule
from eblvm.kernels.grbm_bilevel import Phi, Settings, Theta
from eblvm.kernels.philox import Key, normal, together
from tests.rehearsal.cases import IMAGE, POINT
from tests.rehearsal.steps import fake_start, nothing_drawn_on_the_host
from tests.rehearsal.watch import Watch

CUDA: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cuda", 0)}


class Trained:
    """A method, its nets and a state of a configuration, and data for it."""

    def __init__(self, config: Config, shape: tuple[int, ...]):
        self.v = torch.empty(20, *shape, **CUDA)
        self.method: Any = config.method
        self.nets = self.method.nets(config, self.v)
        self.seed = torch.empty((), dtype=torch.int64, device="cuda")
        state = fake_start(config, self.nets, config.optimisation.seeds(), shape)
        self.theta, self.phi, self.state = state.theta.params, state.phi.params, state


def grbm(method: str = "bidsm") -> Trained:
    return Trained(recipe("freyface").replaced(method=method, device="cuda").replaced(latent=40, batch=20), POINT)


def deep() -> Trained:
    small = {"width": 8, "depth": 12, "posterior_width": 8, "latent": 10, "batch": 6, "device": "cuda"}
    return Trained(recipe("cifar10").replaced(**small), IMAGE)


def gibbs_samples() -> Tensor:
    model = grbm()
    return gibbs(model.theta, Key(model.seed, 0), uniform_start(Key(model.seed, 0), 8, model.v), 3)[0]


def langevin_samples() -> Tensor:
    model = deep()
    key, energy = Key(model.seed, 0), model.nets.energy
    start = normal_start(key, 6, IMAGE, **CUDA), torch.empty(6, 10, **CUDA)
    return langevin(joint_score(energy, model.theta), start, key, [1.0, 0.5])[0]


def annealed_importance() -> Tensor:
    model = grbm()
    ais(model.nets.energy, model.theta, Key(model.seed, 0), chains=8, temperatures=3)
    return model.v


def bound_of_the_likelihood() -> Tensor:
    model = deep()
    args = (model.nets.energy, model.theta, model.nets.posterior, model.phi, model.v, Key(model.seed, 0), 5)
    return importance_weighted(*args).value


def validation() -> Tensor:
    model = deep()
    key = Key(model.seed, 0)
    noise = model.method.draw(model.nets, key, Rows.of(key, model.v))
    return model.method.validation(model.nets, model.state, model.v, noise)


def critic() -> Tensor:
    model = grbm("vages-ssm")
    vages = model.method.estimator
    assert isinstance(vages, Vages)
    fisher_divergence(vages, model.nets, model.theta, model.phi, model.v, model.v, width=8, steps=2, batch=10)
    return model.v


def bench_of_a_grbm() -> Tensor:
    """`eblvm bench grbm`'s contestants."""
    case = Case(recipe("freyface").replaced(latent=40, batch=20, device="cuda"), POINT)
    with nothing_drawn_on_the_host():
        engine, naive = CaseStep(case), NaiveStep(published(case))
    for step in (engine, naive, FloorStep(case)):
        with Watch() as watch:
            step()
        assert step is not engine or not watch.copies, watch.copies
    return engine.state.theta.params["W"]


def bench_of_a_network() -> Tensor:
    """The engine's step of `eblvm bench deep`; modules of fake tensors, as the naive one's, cannot be cast."""
    small = {"width": 8, "depth": 12, "posterior_width": 8, "latent": 10, "head_width": 16, "batch": 6, "K": 2}
    config = recipe("cifar10").replaced(**small, device="cuda")
    with nothing_drawn_on_the_host():
        engine = deep_suite.DeepStep(config, IMAGE)
    engine()
    return next(iter(engine.state.theta.params.values()))


def bench_of_kernels() -> Tensor:
    """`eblvm bench kernels`: every op and its reference."""
    x = torch.empty(1, **CUDA)
    for row in kernels_suite.rows():
        with torch.device("cuda"):
            runs = row.make(torch.float32)
        for run in runs:
            x = tree_leaves(run())[0]
    return x


def kernels_on_the_second_gpu() -> Tensor:
    """Every op on cuda:1 while cuda:0 is the current device."""
    assert torch.cuda.current_device() == 0
    with torch.device("cuda:1"):
        runs = [run for row in kernels_suite.rows() for run in row.make(torch.float32)]
        v, W, h, b, c, scalar = (torch.empty(size) for size in ((9, 6), (6, 4), (9, 4), (6,), (4,), ()))
        seed = torch.empty((), dtype=torch.int64)
    for run in runs:
        run()
    theta, phi = Theta(W, b, c, b), Phi(*[W.mT.contiguous(), c] * 3, scalar)
    settings = Settings(K=2, N=2, sigma=0.3, tau=0.1, exact=True, sgd=True, auto_rate=True, rule=Rule())
    result = grbm_bilevel.grbm_bilevel(v, [v], [h], theta, phi, scalar, scalar, settings)
    one, other = [W, b], [W.clone(), b.clone()]
    adam_unroll.adam_unroll_(one, other, one, one, scalar, scalar, Rule(), 0.1, 1.0)
    adam_unroll.adam_steps(one, other, one, one, scalar, scalar, Rule())
    adam_unroll.restore_(one, other, adam_unroll.all_finite(one))
    with together():
        normal(Key(seed, 0), 1, 5, (3,)), normal(Key(seed, 0), 2, 5, (4,))
    assert torch.cuda.current_device() == 0
    return tree_leaves(result)[0]


PARTS: dict[str, Callable[[], Tensor]] = {
    f"part: {part.__name__}": part
    for part in (
        gibbs_samples,
        langevin_samples,
        annealed_importance,
        bound_of_the_likelihood,
        validation,
        critic,
        bench_of_a_grbm,
        bench_of_a_network,
        bench_of_kernels,
        kernels_on_the_second_gpu,
    )
}


def rehearsed_part(part: Callable[[], Tensor]) -> list[str]:
    """The faults of a part, in words."""
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        found = part()
        if found.device.type != "cuda":
            watch.problems[f"its result is on {found.device}"] += 1
    return list(watch.problems)
