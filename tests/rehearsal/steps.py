"""One training step as the loop runs it, on fake cuda tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.input import open_input
from eblvm.engine.methods.base import Nets, Rows
from eblvm.engine.methods.losses import mdsm
from eblvm.engine.training.start import initial_state
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from tests.rehearsal.watch import Watch

SAMPLES = 200


def undrawn(
    kind: Any, key: Key, purpose: int, count: int, shape: Any, first: int = 0, dtype: Any = None, device: Any = "cpu"
) -> Tensor:
    """In the place of philox's draws on the host, whose native op knows no fake tensors."""
    replicas = torch.as_tensor(key.seed).shape
    return torch.empty(*replicas, count, *shape, dtype=dtype or torch.float32, device=device)


@contextmanager
def nothing_drawn_on_the_host() -> Iterator[None]:
    """Draw no noise on the host: philox's native op cannot run fake tensors."""
    drawn = philox._draw

    def draw(kind: Any, key: Any, purpose: int, count: int, shape: Any, **options: Any) -> Tensor:
        on_host = torch.device(options.get("device", "cpu")).type == "cpu"
        return (undrawn if on_host else drawn)(kind, key, purpose, count, shape, **options)

    with patch.object(philox, "_draw", draw):
        yield


def fake_start(config: Config, nets: Nets, seed: Tensor, shape: tuple[int, ...]) -> Any:
    """Return the initial state, as it is copied to the device; its values do not matter."""
    v = torch.empty(*seed.shape, config.optimisation.batch, *shape, dtype=getattr(torch, config.running.dtype))
    with nothing_drawn_on_the_host(), Watch():  # which returns numbers for fake tensors
        state = initial_state(config, nets, seed, v)
    return tree_map(lambda t: t.to("cuda") if isinstance(t, Tensor) else t, state)


def rehearsed(config: Config, shape: tuple[int, ...], sites: bool = False) -> Watch:
    """Watch a step in the middle of a run on the GPU, with its minibatch, noise and rates."""
    config.check()
    mdsm.kept_positions.cache_clear()  # tensors of another fake device
    optimisation, method = config.optimisation, config.method
    dtype = getattr(torch, config.running.dtype)
    bytes_read = bool(config.get("flip") or config.get("dequantize"))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        samples = torch.empty(SAMPLES, *shape, device="cuda", dtype=torch.uint8 if bytes_read else dtype)
        dataset = Dataset(samples, samples, samples, dtype=dtype)
        seed = mode.from_tensor(optimisation.seeds()).to("cuda")
        nets = method.nets(config, samples)
        state = fake_start(config, nets, seed, shape)
        training_step = config.step.of(config, nets)
        batches = open_input(config.dataset, dataset, seed, optimisation.batch)
        for step in range(2):  # the second one uses what the first one stored, such as an epoch's order
            with Watch(sites) as watch:
                v = batches.batch(step)
                key = Key(seed, step)
                noise = method.draw(nets, key, Rows.of(key, v, 0, optimisation.batch))
                rates = optimisation.rates(step, method.rates(), v)
                if step:
                    state, info = training_step(state, v, noise, rates)
        for name, t in {**info, **{f"leaf {i}": t for i, t in enumerate(tree_leaves(state))}}.items():
            if isinstance(t, Tensor) and t.device.type != "cuda":
                watch.problems[f"{name} of the new state or its log is on {t.device}"] += 1
    return watch
