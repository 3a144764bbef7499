"""The costs of an experiment's runs: FLOPs and bytes of a step, counted on the meta device, where nothing is allocated.

`eblvm plan` counts the gradient of bi-level and exact methods; here it is the whole update of any method, by the same
counter. The figures are kept in a record, so that the list of experiments needs no torch."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from eblvm.bench.reproduce.experiments import Experiment, Row, experiments
from eblvm.bench.tools.records import RECORDS

if TYPE_CHECKING:
    from eblvm.engine.config import Config

SCHEMA = "eblvm-reproduce-costs/1"
PATH = RECORDS / "reproduce-costs.json"

SIZELESS = (  # options that change neither shapes nor operations: rows that differ in these alone are counted once
    "ratio", "langevin_alpha", "langevin_noise", "keep", "checkpoint_every", "replicas", "compile", "data",
)  # fmt: skip


class Cost(NamedTuple):
    """The cost of one run: PFLOP of all its steps (matrix products and convolutions), GiB of a step and its state."""

    pflop: float
    gib: float


def kept() -> dict[str, Cost]:
    """The recorded costs, by the row's command."""
    if not PATH.is_file():
        return {}
    return {command: Cost(*cost) for command, cost in json.loads(PATH.read_text())["costs"].items()}


def of(experiment: Experiment, small: bool = False) -> Cost | None:
    """The work of all runs of an experiment, and the memory of the largest; None if not recorded."""
    known = kept()
    counted = [known[row.train] for row in experiment.chosen(small) if row.train in known]
    if not counted or len(counted) < sum(bool(row.train) for row in experiment.chosen(small)):
        return None
    return Cost(experiment.seeds * sum(c.pflop for c in counted), max(c.gib for c in counted))


def count(config: Config) -> Cost:
    """The cost of one update of this configuration on tensors without memory, times its steps; one replica of
    several."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map

    from eblvm.engine.methods.base import Rows
    from eblvm.engine.planning.footprint import Operators, Storages
    from eblvm.engine.training.step import moved
    from eblvm.kernels.philox import Key

    config = config.replaced(replicas=1, **({"compile": False} if config.step.compile else {}))
    optimisation, method = config.optimisation, config.method
    v = torch.empty(optimisation.batch, *config.shape, device="meta")
    nets, key = method.nets(config, v), Key(0, 0)
    optimizer = optimisation.theta_optimizer()
    state = method.init(nets, key, v, optimizer)
    noise = method.draw(nets, key, Rows.of(key, v))
    rates = optimisation.rates(0, method.rates(), torch.empty(0))
    given = tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, (state, v, noise, rates))
    tensors = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor)]
    if method.alternates:
        step = method.alternating(nets, optimizer, None, in_place=False)
    else:
        step = moved(method.gradient(nets), nets, optimizer, in_place=False)
    with torch.no_grad(), Operators(Storages(tensors)) as counted:
        step(*given)
    held = sum(t.nbytes for t in tree_leaves(given[0]) if isinstance(t, torch.Tensor))
    return Cost(counted.flops * optimisation.steps / 1e15, (held + counted.storages.peak) / 2**30)


def rows(chosen: Iterable[Experiment] | None = None) -> list[Row]:
    """Every row that trains, once each."""
    listed = experiments().values() if chosen is None else chosen
    return list({row.train: row for e in listed for row in (*e.rows, *e.small) if row.train}.values())


def write() -> Path:
    """Count every row again and keep the figures."""
    from eblvm.bench.reproduce.running import config_of
    from eblvm.bench.tools import record

    counted: dict[str, Cost] = {}
    by_command = {}
    for row in rows():
        config = config_of(row.train)
        key = repr([(leaf.name, leaf.value) for leaf in config.leaves() if leaf.name not in SIZELESS])
        if key not in counted:
            counted[key] = count(config)
        by_command[row.train] = list(counted[key])
    body = {"costs": by_command}
    return record.write(record.make(SCHEMA, "reproduce-costs", "eblvm reproduce --costs", "cpu", body), PATH)
