"""`eblvm profile RECIPE --trace FILE`: a few steps as a Chrome trace, for chrome://tracing or ui.perfetto.dev."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from eblvm.bench.contestants.steps import EngineStep
from eblvm.engine.autodiff.derivatives import switched_on
from eblvm.engine.config import Config

STEPS = 3


def write(config: Config, shape: tuple[int, ...], path: Path) -> None:
    """Trace the steps after the first one, with the parts of a step by name and every operator and kernel."""
    step = EngineStep(config, shape)
    step()
    activities = [ProfilerActivity.CPU]
    if config.running.on_cuda:
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with switched_on(), profile(activities=activities) as profiled:
        for _ in range(STEPS):
            step()
        if config.running.on_cuda:
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiled.export_chrome_trace(str(path))
