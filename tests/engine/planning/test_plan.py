"""Plans: what was counted on the meta device against what a real step allocates, and what is made of it."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from eblvm.engine.cli import main
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError
from eblvm.engine.methods.base import Nets, Noise, Rates, Rows
from eblvm.engine.methods.score_matching import ScoreMatching
from eblvm.engine.planning import plan, table
from eblvm.engine.planning.footprint import Saved, Storages
from eblvm.engine.recipes import recipe
from eblvm.engine.training import loop as train
from eblvm.engine.training.start import initial_state
from eblvm.engine.training.step import Step
from eblvm.kernels import philox
from eblvm.kernels.philox import Key
from eblvm.kernels.runtime.dispatch import NATIVE_LIBRARY

SHAPE = (3, 32, 32)
MODEL = recipe("cifar10").replaced(width=16, depth=12, latent=10, head_width=16, posterior_width=8, batch=16)

BIDVL = recipe("cifar10", method="bidvl").replaced(width=8, posterior_width=8, generator_width=8, latent=10, batch=16)


def given(config: Config, nets: Nets, seed: torch.Tensor | int, v: torch.Tensor) -> tuple[Noise, Rates]:
    key, method = Key(seed, 0), config.method
    return method.draw(nets, key, Rows.of(key, v)), config.optimisation.rates(0, method.rates(), v)


def measured_peak_bytes(config: Config, folder: Path, shape: tuple[int, ...] = SHAPE) -> int:
    """Most bytes that torch's allocator gave out at once in a real step on the CPU, beyond what was there before."""
    return max(measured_levels(config, folder, shape))


def measured_levels(config: Config, folder: Path, shape: tuple[int, ...]) -> list[int]:
    """Bytes that torch's allocator had given out, beyond what was there before, after each of its calls in a step."""
    seed, batch = config.optimisation.seeds(), config.optimisation.batch
    v = philox.uniform(Key(seed, 0), 0, batch, shape)
    nets = config.method.nets(config, torch.zeros(batch, *shape))
    state = initial_state(config, nets, seed, v)
    noise, rates = given(config, nets, seed, v)
    step = config.step.of(config, nets)
    state, _ = step(state, v, noise, rates)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.empty(1)
        step(state, v, noise, rates)
    profiler.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    levels = [
        e["args"]["Total Allocated"]
        for e in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    ]
    return [level - levels[0] for level in levels]


def peak_without_workspaces(levels: list[int]) -> int:
    """The peak without what is given back before anything else is asked for: the scratch memory of the library, which a
    plan does not know, and which depends on the CPU. With AVX2 a grouped convolution takes four times its weights."""
    around = zip(levels, levels[1:], levels[2:], strict=False)
    return max(level for before, level, after in around if not (level > before and after == before))


@pytest.mark.skipif(NATIVE_LIBRARY is None, reason="a plan counts fused activations, which this CPU does not have")
@pytest.mark.parametrize(
    "changes",
    [
        {"N": 5},
        {"N": 5, "unroll_memory": "recompute", "checkpoint": "blocks"},
        {"N": 0, "checkpoint": "all"},
        {"N": 2, "micro_batch": 5},
        {"N": 0, "micro_batch": 4},
        {"method": "mdsm", "micro_batch": 5},
        {"method": "vages-mdsm", "L": 5, "C": 2},
        {"method": "vages-mdsm", "checkpoint": "blocks"},
        {"method": "vages-mdsm", "micro_batch": 5},
        {"best_response": "newton"},
        {"best_response": "newton", "micro_batch": 5},
    ],
    ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()),
)
def test_counted_peak_is_what_a_real_step_allocates(changes: dict, tmp_path: Path) -> None:
    config = MODEL.replaced(**changes)
    counted = plan.step_cost(config, SHAPE).peak_bytes
    assert counted == pytest.approx(measured_peak_bytes(config, tmp_path), rel=0.10)


REPLICAS = recipe("digits", "deep").replaced(batch=16, replicas=3, width=8, latent=6)


@pytest.mark.skipif(NATIVE_LIBRARY is None, reason="a plan counts fused activations, which this CPU does not have")
@pytest.mark.parametrize(
    "changes",
    [
        {"N": 2, "ema": 0.9},
        {"method": "vages-mdsm"},
        {"method": "mdsm", "lr": (1e-3, 1e-4)},
        {"best_response": "newton"},
    ],
    ids=str,
)
def test_counted_peak_of_replicas_is_what_a_real_step_allocates(changes: dict, tmp_path: Path) -> None:
    config, shape = REPLICAS.replaced(**changes), (1, 8, 8)
    found, one = (plan.step_cost(c, shape) for c in (config, config.replaced(replicas=1, lr=(1e-3,))))
    levels = measured_levels(config, tmp_path, shape)
    assert 0.9 * peak_without_workspaces(levels) <= found.peak_bytes <= 1.1 * max(levels)
    count = 3 * len(config.optimisation.lr)
    assert found.state_bytes == count * one.state_bytes
    assert found.saved_bytes == count * one.saved_bytes


def test_a_plan_of_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("plan digits --model deep --replicas 3 --batch 8 --memory 8GiB".split()) == 0
    said = capsys.readouterr().out
    assert "per process and step, all 3 replicas together" in said
    assert len(said.splitlines()) == 6  # a head, names, fp32, bf16, the command and the next one
    assert "--replicas 3" in said
    assert main("plan digits --model deep --replicas 3 --batch 8 --gpus 2".split()) == 2
    assert "a plan of replicas is for a score matching method in one process" in capsys.readouterr().err
    assert "fewer --replicas" in plan.next_smaller(REPLICAS, (1, 8, 8), 1)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"checkpoint": "blocks"}, {"micro_batch": 4}, {"N": 1, "checkpoint": "blocks"},
        pytest.param({"N": 1, "micro_batch": 4}, marks=pytest.mark.long), {"channels_last": True},
    ],
    ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()) or "plain",
)  # fmt: skip
def test_counted_peak_of_bidvl_is_what_a_real_step_allocates(changes: dict, tmp_path: Path) -> None:
    config = BIDVL.replaced(**changes)
    counted = plan.step_cost(config, SHAPE).peak_bytes
    assert counted == pytest.approx(measured_peak_bytes(config, tmp_path), rel=0.10)


def test_bidvls_smaller_settings_need_less() -> None:
    config = recipe("celeba64", small=True, method="bidvl")
    plain, cut, pieces, half = (
        plan.step_cost(config.replaced(**changes), config.shape)
        for changes in ({}, {"checkpoint": "blocks"}, {"micro_batch": 8}, {"precision": "bf16"})
    )
    assert cut.peak_bytes < 0.9 * plain.peak_bytes
    assert cut.saved_bytes < 0.5 * plain.saved_bytes
    assert pieces.peak_bytes < 0.4 * plain.peak_bytes
    assert half.peak_bytes < 0.65 * plain.peak_bytes
    assert plain.flops < cut.flops < pieces.flops < 4 * plain.flops


def test_autocast_on_the_meta_device_keeps_what_it_keeps_on_the_cpu() -> None:
    """A CPU without 16-bit products needs buffers of its own for them, so this one counts tensors on both sides."""
    config = MODEL.replaced(precision="bf16")
    v = philox.uniform(Key(0, 0), 0, config.optimisation.batch, SHAPE)
    method, nets = config.method, config.method.nets(config, v)
    assert isinstance(method, ScoreMatching)
    state = initial_state(config, nets, torch.tensor(0), v)
    theta = {k: p.requires_grad_() for k, p in state.theta.params.items()}
    noise, rates = given(config, nets, 0, v)
    saved = Storages(tree_leaves((state, v, noise, rates)))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: Saved(saved, t), lambda s: s.tensor):
        loss, _ = method.upper(nets, state.phi, v, noise, rates, theta)
    held, _ = saved.live, loss
    counted = plan.step_cost(config, SHAPE).saved_bytes
    assert counted == pytest.approx(held, rel=0.10)
    assert counted < 0.7 * plan.step_cost(MODEL, SHAPE).saved_bytes


def test_plan_of_celeba64(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Memory is flat in N, and the published batch of 100 fits four GPUs of 11 GiB."""
    command = "plan celeba64 --N 0,10 --K 1 --gpus 4 --memory 11GiB --checkpoint none".split()
    assert main([*command, "--json", str(tmp_path / "plan.json"), "--plot", str(tmp_path / "plan.png")]) == 0
    said = capsys.readouterr().out
    assert "use: torchrun --nproc-per-node 4 -m eblvm train celeba64 --data PATH --device cuda" in said
    facts = json.loads((tmp_path / "plan.json").read_text())
    by_mode: dict[tuple, list[float]] = {}
    for row in facts["rows"]:
        assert row["fits"]
        assert row["micro_batch"] == 25
        by_mode.setdefault((row["checkpoint"], row["precision"]), []).append(row["total_mib"])
    assert len(by_mode) == 2
    for none, ten in by_mode.values():
        assert none < ten <= 1.10 * none
    assert (tmp_path / "plan.png").stat().st_size > 10_000


def test_smaller_settings_need_less_and_the_least_work_that_fits_is_chosen() -> None:
    model = MODEL.replaced(K=0)
    plain, cut, pieces = (
        plan.step_cost(model.replaced(**changes), SHAPE)
        for changes in ({}, {"checkpoint": "blocks"}, {"micro_batch": 4})
    )
    assert cut.peak_bytes < plain.peak_bytes < 2 * cut.peak_bytes
    assert pieces.peak_bytes < 0.5 * plain.peak_bytes
    assert plain.flops < pieces.flops < cut.flops < 2 * plain.flops

    def chosen(memory: int, **changes: int) -> Config:
        return plan.with_checkpoint_chosen(
            model.replaced(checkpoint="auto", **changes), SHAPE, 1, memory + plan.RESERVED
        )

    assert chosen(plain.total_bytes).model.checkpoint == "none"
    assert chosen(plain.total_bytes).step.micro_batch is None
    assert chosen(plain.total_bytes - 1).step.micro_batch == 8
    with pytest.raises(UserError, match="no setting of the plan fits: the smallest needs"):
        chosen(0, micro_batch=8)


def test_traffic_by_the_number_of_gpus() -> None:
    config = MODEL.replaced(N=3, K=2)
    one, two = plan.step_cost(config, SHAPE), plan.step_cost(config, SHAPE, gpus=2)
    assert one.sent_bytes == 0
    assert two.sent_bytes == 4 * (one.parameters + (2 + 2 * 3) * one.posterior_parameters)
    local = plan.step_cost(config.replaced(sync="local"), SHAPE, gpus=2)
    assert local.sent_bytes == 4 * (one.parameters + 2 * one.posterior_parameters)


def test_out_of_memory_says_the_next_smaller_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    config = recipe("digits", "deep").replaced(width=2, batch=8, steps=2, K=0, N=1)
    monkeypatch.setattr(Step, "of", lambda *_: full)
    with pytest.raises(UserError, match=r"out of memory: by the plan .* next smaller setting is --checkpoint blocks, "):
        train.train(config, tmp_path)


def test_auto_is_settled_at_the_start(tmp_path: Path) -> None:
    said: list[str] = []
    config = recipe("digits", "deep").replaced(width=2, batch=8, steps=2, checkpoint="auto", validations=0)
    train.train(config, tmp_path, said.append)
    assert said == ["the plan chooses --checkpoint none, micro-batch none"]


@pytest.mark.parametrize(("text", "expected"), [("11GiB", 11 * 2**30), ("1.5 MB", 1_500_000), ("512", 512)])
def test_parse_bytes(text: str, expected: int) -> None:
    assert table.parse_bytes(text) == expected


def test_a_memory_that_is_none() -> None:
    with pytest.raises(UserError, match="expected a number with a unit, such as 11GiB"):
        table.parse_bytes("eleven")
