"""Defaults of a new run on a GPU, for what the command leaves open. They are printed, and every flag overrides them.

    networks, compute capability 8.0 or newer, no --precision   tf32: factors of products rounded to 10 bits
    networks in tf32, bf16 or fp16, no --[no-]channels-last     channels_last, the order tensor cores read
    no --deterministic                                          cuDNN tries its algorithms (cudnn.benchmark)
    nothing that `uncaptured` names                             the step as a CUDA graph (--graphs)

The host takes longer to launch small kernels than a GPU takes to run them, and with several GPUs those of a network are
small: a graph is one launch, on any number of processes.

`--precision fp32` is exact fp32. Models without convolutions (a GRBM, an MLP) stay exact. A run that exists keeps what
it began with.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from eblvm.engine.config import Config
from eblvm.engine.training.step import waits_in_a_step

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


def takes_graphs(config: Config) -> bool:
    """Is the step replayed as a CUDA graph?"""
    return config.running.on_cuda and uncaptured(config) is None


def uncaptured(config: Config) -> str | None:
    """Say why the step is not replayed as a CUDA graph, --no-graphs included; None: it is."""
    running, step = config.running, config.step
    if step.graphs is False:
        return "--no-graphs"
    cannot = waits_in_a_step(config)
    if cannot is not None or step.graphs:
        return cannot
    if running.deterministic:
        return "--deterministic promises the bits of plain steps"
    return "a compiled step needs --graphs" if step.compile else None


def sentence(config: Config, gpu: str) -> str:
    found = [f"--precision {config.model.precision}"]
    found += ["--channels-last"] if config.get("channels_last") else []
    found += ["--deterministic"] if config.running.deterministic else ["cudnn.benchmark"]
    why = uncaptured(config)
    found += ["--graphs"] if why is None else [why if why == "--no-graphs" else f"no graph ({why})"]
    return f"on {gpu}: {', '.join(found)}; flags override this, --precision fp32 --no-channels-last is exact"
