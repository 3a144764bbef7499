"""The training step, and the one place that chooses how it runs: fused, in chunks, over replicas, compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from eblvm.engine import autodiff
from eblvm.engine.autodiff import collectives, convolution, mixed_precision
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Gradient, Info, Nets, Noise, Rates, State, TrainingStep
from eblvm.engine.optim.base import Optimizer, averaged
from eblvm.engine.options import Options, nodes, option
from eblvm.engine.types import Params
from eblvm.kernels import adam_unroll

if TYPE_CHECKING:
    from torch import Tensor

    from eblvm.engine.autodiff.derivatives import Finish
    from eblvm.engine.config import Config


class Step(Options):
    """A pure function (state, batch, noise, rates) -> (state, info)."""

    group = "running"

    micro_batch: int | None = option(
        None,
        "samples that go through the networks at once, with the same result; none: all of a process's batch",
        low=1,
        mathematical=False,
        needs="micro_batches",
    )
    fused: bool = option(
        True, "use the fused step where there is one; it equals the other to rounding", needs="linear_in_h"
    )
    compile: bool = option(False, "compile the whole step with torch.compile", needs="compiles")
    graphs: bool | None = option(
        None,
        "replay the step as a CUDA graph, on any number of GPUs, once it has repeated three plain steps; "
        "none: where nothing in the step waits for the GPU, without --compile and --deterministic",
        mathematical=False,
    )
    memory_budget: float | None = option(
        None,
        "with --compile: fraction of the activations that the compiler may keep; none: as it likes",
        above=0,
        high=1,
        needs="compiles",
    )

    def check(self, config: Config) -> None:
        if self.graphs and not config.running.on_cuda:
            raise UserError("graphs are CUDA's; add --device cuda, or remove --graphs")
        if self.graphs and (why := waits_in_a_step(config)):
            raise UserError(f"a CUDA graph cannot wait for the GPU, and {why}; remove --graphs")
        if self.memory_budget is not None and not self.compile:
            raise UserError("memory-budget is the compiler's own trade of memory for time; add --compile")
        if self.micro_batch is not None and (self.compile or config.replicated):
            raise UserError("micro-batch is for the eager, single run; remove it, or --compile and --replicas")
        model = config.model
        if model.checkpoint in model.checkpoints[1:] and (self.compile or config.replicated):
            raise UserError(
                "checkpoint is for the eager, single run; with --compile use --memory-budget, and train replicas one "
                "by one"
            )
        if model.precision == "fp16" and (self.compile or config.replicated):
            raise UserError(
                "precision 'fp16' scales the gradients of eager steps of one run; use bf16, or remove --compile and "
                "--replicas"
            )
        if model.precision != "fp32" and config.running.dtype != "float32":
            raise UserError(f"precision {model.precision!r} is for dtype float32, got {config.running.dtype!r}")

    def of(self, config: Config, nets: Nets) -> TrainingStep:
        """Return the step of a run. It may overwrite the state it is given: keep a copy of what is wanted later.

        A fused gradient and `move` take replica axes themselves; the plain gradient is vmapped, and closes over `nets`.
        """
        method, optimisation = config.method, config.optimisation
        optimizer, replicated = optimisation.theta_optimizer(), optimisation.replicated
        device, dtype = torch.device(config.running.device), getattr(torch, config.running.dtype)
        in_place = not (self.compile or replicated)
        # Fused steps take the whole batch, and have their lower steps inside, where nothing is averaged over processes.
        fused = None
        if self.fused and not self.compile and self.micro_batch is None and collectives.size() == 1:
            fused = method.fused(nets, device, dtype)
        if method.alternates:
            alternating = method.alternating(nets, optimizer, self.micro_batch, in_place)
            step = torch.no_grad()(torch.vmap(alternating) if replicated else alternating)
        elif fused is not None:
            step = moved(fused, nets, optimizer, in_place=True, name="fused gradient")
        else:
            gradient = method.chunked(nets, self.micro_batch) if self.micro_batch else method.gradient(nets)
            if replicated:
                gradient = vectorised(gradient)
            if collectives.size() > 1:
                gradient = reduced(gradient, method.overlaps and not replicated)
            step = moved(gradient, nets, optimizer, in_place)
        if not self.compile:
            return step
        if self.memory_budget is not None:
            torch._functorch.config.activation_memory_budget = self.memory_budget
        # --graphs captures the compiled step as any other. The compiler's own graphs ("reduce-overhead") own what they
        # return: the state, which goes round, would be copied out of their memory and into it again in every step.
        convolution.keep_in_graphs()
        return torch.compile(step, dynamic=False)


def waits_in_a_step(config: Config) -> str | None:
    """Say what keeps the step from being a CUDA graph; None: nothing that a node of the configuration knows of."""
    return next((why for node in nodes(config) if (why := node.waits(config))), None)


def moved(gradient: Gradient, nets: Nets, optimizer: Optimizer, in_place: bool, name: str = "gradient") -> TrainingStep:
    """Return the step of a gradient, which profilers see by `name`: theta moves by it, after phi, then both averages.

    In place, theta, its moments and its average move in the state's own memory: the old state is spent."""

    @torch.no_grad()  # it leaves no graph behind; its derivatives enable what they need
    def step(state: State, v: Tensor, noise: Noise, rates: Rates) -> tuple[State, Info]:
        before = state
        with autodiff.named(name):
            bars, state, info = gradient(state, v, noise, rates)
        go = None
        if before.scale:
            value = before.scale["value"]
            leaves = autodiff.tree_leaves((bars, state.phi.params))
            finite = adam_unroll.all_finite([x for x in leaves if isinstance(x, torch.Tensor)])
            go = finite | (value <= mixed_precision.SMALLEST)  # else an overflow caused by the loss scale: no step
            state = state._replace(scale=mixed_precision.next_scale(before.scale, finite))
            info = info | {"loss_scale": value}
            if adam_unroll.serves_lists(value):  # the host does not wait for the answer
                info["skipped"] = (~go).to(value.dtype)
                after, old = (autodiff.tree_leaves((s.phi.params, s.phi.moments)) for s in (state, before))
                adam_unroll.restore_(after, old, go)  # phi stays where `go` is false
            elif not go:
                return before._replace(scale=state.scale), {"loss_scale": value, "skipped": torch.ones_like(value)}
            else:
                go = None
        if nets.energy.frozen:
            bars = bars | {k: torch.zeros_like(bars[k]) for k in nets.energy.frozen}
        with autodiff.named("move theta"):
            theta, norm = optimizer.move(state.theta, bars, rates["theta"], in_place=in_place, go=go)
        if optimizer.average is not None and state.phi.average:
            phi = averaged(state.phi, optimizer.average, in_place and go is None)
            if go is not None:
                adam_unroll.restore_(list(phi.average.values()), list(state.phi.average.values()), go)
            state = state._replace(phi=phi)
        return state._replace(theta=theta), info | {"gradient_norm": norm}

    return step


def reduced(gradient: Gradient, overlaps: bool) -> Gradient:
    """Return the mean over processes of a gradient and its info.

    The parts of a gradient that says when each is complete travel while backward goes on; all others at the end."""

    def mean(
        state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
    ) -> tuple[Params, State, Info]:
        if not overlaps:
            bars, state, info = gradient(state, v, noise, rates)
            with autodiff.named("mean over processes"):
                bars, info = collectives.mean((bars, info))
            return bars, state, info
        under_way = collectives.MeanUnderWay(list(state.theta.params.values()))
        bars, state, info = gradient(state, v, noise, rates, under_way)
        with autodiff.named("mean over processes"):
            means = under_way.wait(list(bars.values()))
            return dict(zip(bars, means, strict=True)), state, collectives.mean(info)

    return mean


def vectorised(gradient: Gradient) -> Gradient:
    """Return a gradient over replicas, the first axis of every tensor; theta stays as it is."""
    over_replicas = torch.vmap(gradient)

    def every(
        state: State, v: Tensor, noise: Noise, rates: Rates, finish: Finish | None = None
    ) -> tuple[Params, State, Info]:
        bars, after, info = over_replicas(state, v, noise, rates)
        return bars, after._replace(theta=state.theta), info

    return every
