"""Defaults of a new run on a GPU, for what the command leaves open. They are printed, and every flag overrides them.

    networks, compute capability 8.0 or newer, no --precision         tf32: factors of products rounded to 10 bits
    networks in tf32, bf16 or fp16, no --[no-]channels-last           channels_last, the order tensor cores read
    no --deterministic                                                cuDNN tries its algorithms (cudnn.benchmark)
    a GRBM or an MLP, one process, no --compile, no --deterministic   the step as a CUDA graph (--graphs)

Small kernels take less time than the host takes to launch them: a graph is one launch. A network's kernels are long
enough, and a graph holds its activations a second time.

`--precision fp32` is exact fp32. Models without convolutions (a GRBM, an MLP) stay exact. A run that exists keeps what
it began with.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eblvm.engine.config import Config

CHOSEN = ("precision", "channels_last")


def gpu_defaults(config: Config, given: Collection[str], before: Config | None, capability: tuple[int, int]) -> Config:
    """`config` with what is not `given` chosen for a GPU, or taken from the run that it continues."""
    changes: dict[str, Any] = {}
    if config.get("channels_last") is None:
        return config
    for name in CHOSEN:
        if config.get(name) is None or name in given:
            continue
        if before is not None and before.get(name) is not None:
            changes[name] = before[name]
        elif name == "precision" and capability >= (8, 0):
            changes[name] = "tf32"
        elif name == "channels_last" and changes.get("precision", config["precision"]) != "fp32":
            changes[name] = True
    return config.replaced(**changes) if changes else config


def takes_graphs(config: Config, processes: int) -> bool:
    """Is the step replayed as a CUDA graph? As --[no-]graphs says, else by the rule above."""
    running, step = config.running, config.step
    if step.graphs is not None or not running.on_cuda:
        return bool(step.graphs)
    return processes == 1 and config.get("channels_last") is None and not (step.compile or running.deterministic)


def sentence(config: Config, gpu: str, processes: int = 1) -> str:
    found = [f"--precision {config.model.precision}"]
    found += ["--channels-last"] if config.get("channels_last") else []
    found += ["--deterministic"] if config.running.deterministic else ["cudnn.benchmark"]
    found += ["--graphs"] if takes_graphs(config, processes) else []
    return f"on {gpu}: {', '.join(found)}; flags override this, --precision fp32 --no-channels-last is exact"
