"""The training loop: exact resume after any end, guard, best model, folders of other runs."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine import recipes
from eblvm.engine.cli import main
from eblvm.engine.config import Config
from eblvm.engine.errors import DivergedError, UserError
from eblvm.engine.methods import KINDS
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.runs.stats import reproducible
from eblvm.engine.training.loop import train
from eblvm.kernels.philox import Key


def small(**changes: object) -> Config:
    defaults = {"steps": 60, "checkpoint_every": 20, "log_every": 10, "validations": 3, "method": "dsm"}
    return recipes.points("checkerboard4").replaced(**{**defaults, **changes})


def small_of(method: str, **wanted: object) -> Config:
    """A small run of a method with those of `wanted` that it reads."""
    config = small(method=method)
    return config.replaced(**{name: value for name, value in wanted.items() if config.get(name) is not None})


def final_state(folder: Path) -> dict:
    payload, _ = checkpoint.newest(folder / "checkpoints")
    assert payload is not None
    return payload


def assert_bitwise_equal(a: dict, b: dict) -> None:
    assert a["step"] == b["step"]
    for part in ("state", "best"):
        leaves_a, spec_a = tree_flatten(a[part])
        leaves_b, spec_b = tree_flatten(b[part])
        assert spec_a == spec_b
        for x, y in zip(leaves_a, leaves_b, strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y


GRBM_METHODS = [m for m in KINDS if m != "bidvl"]
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def train_command(out: Path, steps: int) -> list[str]:
    options = "--method bidsm --N 2 --K 2 --checkpoint-every 15 --log-every 5 --validations 4 --ema 0.9".split()
    command = "import sys; from eblvm.engine.cli import main; sys.exit(main())"
    return [sys.executable, "-c", command, "train", "checkerboard", *options, "--steps", str(steps), "--out", str(out)]


def test_any_end_at_any_moment_then_continue_is_bitwise_equal(tmp_path: Path) -> None:
    """Killed in start-up and at a random step, asked to stop by both signals: the end is that of an unbroken run.

    `make kills` does so two hundred times."""
    steps, whole, broken = 600, tmp_path / "whole", tmp_path / "broken"
    subprocess.run(train_command(whole, steps), check=True, **QUIET)
    dice = random.Random(0)
    start_up = subprocess.Popen(train_command(broken, steps), **QUIET)
    time.sleep(dice.uniform(0, 2))
    start_up.kill()
    start_up.wait()
    ended = {signal.SIGKILL: 0, signal.SIGTERM: 0, signal.SIGINT: 0}
    targets = sorted(dice.sample(range(1, steps - 100), len(ended)))
    for target, number in zip(targets, ended, strict=True):
        process = subprocess.Popen(train_command(broken, steps), **QUIET)
        while process.poll() is None and max(checkpoint.steps(broken / "checkpoints"), default=0) < target:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 0.02))
        if process.poll() is None:
            process.send_signal(number)
            ended[number] += 1
        assert process.wait() in ((0,) if number != signal.SIGKILL else (0, -signal.SIGKILL))
    assert all(ended.values()), ended
    subprocess.run(train_command(broken, steps), check=True, **QUIET)
    assert_bitwise_equal(final_state(broken), final_state(whole))
    assert reproducible(broken / "stats.jsonl") == reproducible(whole / "stats.jsonl")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["term", "hup"])
def test_a_signal_says_where_it_saved(number: signal.Signals, tmp_path: Path) -> None:
    command = train_command(tmp_path / "run", 1_000_000)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 120
    while not checkpoint.steps(tmp_path / "run" / "checkpoints"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    said, _ = process.communicate()
    assert process.returncode == 0
    assert f"saved at step {checkpoint.steps(tmp_path / 'run' / 'checkpoints')[0]}" in said


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    process = subprocess.Popen(train_command(tmp_path / "run", 1_000_000), **QUIET)
    try:
        deadline = time.monotonic() + 120
        while not checkpoint.steps(tmp_path / "run" / "checkpoints"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = subprocess.run(train_command(tmp_path / "run", 1_000_000), capture_output=True, text=True)
    finally:
        process.kill()
        process.wait()
    assert second.returncode == 2
    assert "is being trained by another process" in second.stderr


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "bidsm", "posterior": "mlp", "N": 1, "K": 1},
        {"method": "bidsm", "posterior": "exact", "N": 0, "K": 0},
        {"method": "bidsm", "N": 2, "K": 1, "unroll_optimizer": "sgd", "divergence": "kl-exact", "dtype": "float64"},
        {"method": "bidsm", "N": 1, "K": 1, "noise": "fresh", "divergence": "kl", "latent_samples": 3},
        {"method": "bissm", "N": 1, "K": 1, "directions": 2, "direction": "gaussian"},
    ],
    ids=lambda c: "-".join(str(v) for v in c.values()),
)
def test_options_train_and_resume(changes: dict, replicas: int, tmp_path: Path) -> None:
    config = small(steps=20, checkpoint_every=10, validations=2, replicas=replicas, **changes)
    train(config, tmp_path / "whole")
    train(config.replaced(steps=10), tmp_path / "parts")
    train(config, tmp_path / "parts")
    whole, parts = final_state(tmp_path / "whole"), final_state(tmp_path / "parts")
    for x, y in zip(tree_flatten(whole["state"])[0], tree_flatten(parts["state"])[0], strict=True):
        assert torch.equal(x, y)
        assert x.dtype == getattr(torch, config.running.dtype)


def test_compiled_training_follows_the_eager_one_and_resumes_bitwise(tmp_path: Path) -> None:
    config = small(steps=20, checkpoint_every=10, validations=0)
    train(config, tmp_path / "eager")
    compiled = config.replaced(compile=True)
    train(compiled, tmp_path / "whole")
    train(compiled.replaced(steps=10), tmp_path / "parts")
    train(compiled, tmp_path / "parts")
    eager, whole, parts = (final_state(tmp_path / name)["state"]["theta"] for name in ("eager", "whole", "parts"))
    for name, value in whole.items():
        torch.testing.assert_close(value, eager[name], rtol=0, atol=1e-5)
        assert torch.equal(value, parts[name])


@pytest.mark.parametrize("method", GRBM_METHODS)
def test_every_method_resumes_bitwise(method: str, tmp_path: Path) -> None:
    config = small_of(method, N=1, K=1, latent_samples=2, steps=40)
    train(config, tmp_path / "whole")
    train(config.replaced(steps=20), tmp_path / "parts")
    train(config, tmp_path / "parts")
    whole, parts = final_state(tmp_path / "whole"), final_state(tmp_path / "parts")
    assert whole["step"] == parts["step"] == 40
    for x, y in zip(tree_flatten(whole["state"])[0], tree_flatten(parts["state"])[0], strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("method", GRBM_METHODS)
def test_every_method_learns(method: str, tmp_path: Path) -> None:
    """300 steps bring the exact test log-likelihood well above that of the start."""
    from eblvm.engine.evaluation.metrics.likelihood import exact_log_z, log_likelihood

    config = small_of(method, steps=300, checkpoint_every=300, validations=0, latent_samples=2, lr=(1e-2,), N=1)
    train(config, tmp_path)
    run = SavedRun.open(tmp_path)

    def likelihood(theta: dict) -> float:
        return log_likelihood(run.grbm, theta, run.dataset.test, exact_log_z(run.grbm, theta).value)

    from eblvm.kernels.philox import Key

    before, after = likelihood(run.grbm.initial(Key(config.optimisation.seed, 0))), likelihood(run.thetas("last")[0])
    assert after > before + 0.2


def small_bidvl(**changes: object) -> Config:
    widths = {"width": 2, "posterior_width": 2, "generator_width": 2, "latent": 3, "batch": 10}
    defaults = {"steps": 10, "checkpoint_every": 5, "log_every": 5, "validations": 2}
    return recipes.recipe("digits", method="bidvl").replaced(**{**widths, **defaults, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"opposite": "complete", "ratio_bias": "sigmoid", "K": 2, "ema": 0.9},
        {"energy": "joint", "opposite": "none", "N": 1, "unroll_memory": "recompute"},
        {"replicas": 2, "upper": "hinge", "output": "real"},
        {"checkpoint": "blocks", "precision": "bf16", "channels_last": True},
        {"micro_batch": 4, "N": 1},
        {"precision": "fp16", "micro_batch": 4},
    ],
    ids=["offset", "complete", "joint-unrolled", "replicas-hinge", "checkpoint-bf16", "micro-batch", "fp16"],
)
def test_bidvl_resumes_bitwise(changes: dict, tmp_path: Path) -> None:
    """Parameters, moments, and what the nets hold beside them: running statistics and spectral vectors."""
    config = small_bidvl(**changes)
    train(config, tmp_path / "whole")
    train(config.replaced(steps=5), tmp_path / "parts")
    train(config, tmp_path / "parts")
    whole, parts = final_state(tmp_path / "whole"), final_state(tmp_path / "parts")
    assert_bitwise_equal({**whole, "best": {}}, {**parts, "best": {}})
    assert {name.split(".")[0] for name in whole["state"]["buffers"]} == {"energy", "encoder", "generator"}
    assert set(whole["best"]["buffers"]) == set(whole["state"]["buffers"])


def test_energy_running_away_is_stopped_with_advice(tmp_path: Path) -> None:
    config = small_bidvl(output="real", lr=(300.0,), steps=60, log_every=1, validations=0)
    with pytest.raises(DivergedError, match=r"energy_\w+ is -?\d+.* Try --upper hinge .* smaller --lr"):
        train(config, tmp_path)


def test_images_of_a_size_that_does_not_fit_are_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"got samples of shape \[1, 8, 8\], expected square images of 32, 128 pixels"):
        train(small_bidvl(model="sn-resnet"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_validation_chooses_the_best_model(tmp_path: Path) -> None:
    train(small(validations=6), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "stats.jsonl").read_text().splitlines()]
    validated = {row["step"]: row["validation"] for row in rows if "validation" in row}
    assert sorted(validated) == [10, 20, 30, 40, 50, 60]
    best = final_state(tmp_path)["best"]
    assert best["step"] == [min(validated, key=validated.__getitem__)]
    assert best["value"] == [min(validated.values())]


def test_ema_follows_theta(tmp_path: Path) -> None:
    train(small(ema=0.5, steps=1, validations=0), tmp_path)
    state = final_state(tmp_path)["state"]
    from eblvm.engine.nets.grbm import GRBM

    start = GRBM(2, 4).initial(Key(0, 0))
    for name, average in state["ema"].items():
        torch.testing.assert_close(average, 0.5 * (start[name] + state["theta"][name]))


@pytest.mark.parametrize("fused", [True, False])
def test_ema_follows_phi_after_all_its_steps(fused: bool, tmp_path: Path) -> None:
    """decay * average + (1 - decay) * phi, phi being what the step ends with; a run without it has none."""
    config = small(method="vages-dsm", ema=0.75, steps=3, checkpoint_every=1, keep=9, validations=0, fused=fused)
    train(config, tmp_path / "run")
    states = [checkpoint.read(path_of(tmp_path / "run", step))["state"] for step in (1, 2, 3)]
    for before, after in pairwise(states):
        for name, average in after["phi_ema"].items():
            torch.testing.assert_close(average, 0.75 * before["phi_ema"][name] + 0.25 * after["phi"][name])
            assert not torch.equal(average, after["phi"][name])
    run = SavedRun.open(tmp_path / "run")
    assert all(torch.equal(p, states[-1]["phi_ema"][name]) for name, p in run.phi("ema").items())
    assert all(torch.equal(p, states[-1]["phi"][name]) for name, p in run.phi("last").items())


def path_of(folder: Path, step: int) -> Path:
    return checkpoint.path_of(folder / "checkpoints", step)


def test_bidvls_averages_follow_encoder_and_generator(tmp_path: Path) -> None:
    train(small_bidvl(ema=0.75, steps=2, checkpoint_every=1, keep=9, validations=0), tmp_path)
    before, after = (checkpoint.read(path_of(tmp_path, step))["state"] for step in (1, 2))
    for name, average in after["phi_ema"].items():
        torch.testing.assert_close(average, 0.75 * before["phi_ema"][name] + 0.25 * after["phi"][name])
    assert set(after["phi_ema"]) == set(after["phi"])


def test_clip_norm_bounds_the_first_sgd_like_step(tmp_path: Path) -> None:
    """Adam's first step is lr * g / |g| whatever the norm, but its second moment shows the clipped gradient."""
    train(small(clip_norm=0.01, steps=1, validations=0), tmp_path)
    second = final_state(tmp_path)["state"]["theta_opt"]["v"]
    norm = sum(v.sum() for v in second.values()) / (1 - 0.95)
    assert norm.sqrt().item() == pytest.approx(0.01, rel=1e-4)


def test_clipping_q_bounds_its_gradient(tmp_path: Path) -> None:
    train(small(method="bidsm", N=0, K=1, lower_clip_norm=1e-4, steps=1, validations=0), tmp_path)
    second = final_state(tmp_path)["state"]["phi_opt"]["v"]
    norm = sum(v.sum() for v in second.values()) / (1 - 0.95)
    assert norm.sqrt().item() == pytest.approx(1e-4, rel=1e-4)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("method", ["bidsm", "cd", "nce"])
def test_a_fixed_sigma_stays(method: str, fused: bool, tmp_path: Path) -> None:
    how = {"fused": fused} if method == "bidsm" else {}
    config = small(method=method, fixed_sigma=0.4, steps=5, validations=0, clip_norm=1.0, **how)
    train(config, tmp_path)
    theta = final_state(tmp_path)["state"]["theta"]
    assert torch.equal(theta["log_sigma"], torch.full((2,), math.log(0.4)))
    assert not torch.equal(theta["W"], SavedRun.open(tmp_path).energy.initial(Key(0, 0))["W"])


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "lr": (1e-4,), "lower_optimizer": "rmsprop", "replicas": 2},
        {"optimizer": "rmsprop", "N": 2, "divergence": "iwae", "latent_samples": 3, "lower_clip_norm": 1.0},
    ],
    ids=["sgd", "rmsprop"],
)
def test_other_optimisers_resume_bitwise(changes: dict, tmp_path: Path) -> None:
    config = small(method="bidsm", steps=40, checkpoint_every=20, **changes)
    train(config, tmp_path / "whole")
    train(config.replaced(steps=20), tmp_path / "parts")
    train(config, tmp_path / "parts")
    whole, parts = final_state(tmp_path / "whole"), final_state(tmp_path / "parts")
    assert_bitwise_equal({**whole, "best": {}}, {**parts, "best": {}})
    moments = whole["state"]["theta_opt"]
    assert bool(moments["m"]) == (changes["optimizer"] == "sgd")
    assert bool(moments["v"]) == (changes["optimizer"] == "rmsprop")
    assert whole["state"]["phi_opt"]["v"]
    assert not whole["state"]["phi_opt"]["m"]


def test_divergence_stops_with_code_3_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    train(small(steps=20), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "optimisation": {**config["optimisation"], "lr": [1e12]}})
    )
    with pytest.raises(DivergedError, match=r"stopped at step \d+: .* the checkpoint of step 20 is kept. Try"):
        train(small(lr=(1e12,)), tmp_path)
    assert checkpoint.steps(tmp_path / "checkpoints") == [20]


def test_langevin_steps_that_diverge_are_named(tmp_path: Path) -> None:
    config = recipes.recipe("digits", "deep").replaced(method="vages-mdsm", C=30, langevin_alpha=2e3, steps=2, batch=4)
    with pytest.raises(DivergedError, match=r"langevin is .* a smaller --langevin-alpha"):
        train(config, tmp_path / "run")
    assert not checkpoint.steps(tmp_path / "run" / "checkpoints")


def test_a_diverged_run_exits_with_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--method", "dsm", "--lr", "1e12", "--steps", "50", "--log-every", "1"]
    assert main(["train", "checkerboard", *options, "--out", str(tmp_path)]) == 3
    assert "Try a smaller --lr" in capsys.readouterr().err


def test_short_runs_validate_at_the_end(tmp_path: Path) -> None:
    train(small(steps=2, validations=10), tmp_path)
    assert final_state(tmp_path)["best"]["step"][0] in (1, 2)


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    train(small(steps=20), tmp_path)
    before = (tmp_path / "config.json").read_text()
    assert train(small(steps=5), tmp_path)
    assert (tmp_path / "config.json").read_text() == before


def test_another_configuration_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    train(small(), tmp_path)
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"another configuration \(sigma 0.3 -> 0.1\)"):
        train(small(sigma=0.1), tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("chapter 1")
    with pytest.raises(UserError, match="is not a run folder; nothing was overwritten"):
        train(small(), tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_folder_left_by_a_kill_before_the_first_write_is_a_new_run(tmp_path: Path) -> None:
    (tmp_path / ".config.json.tmp").write_text("{")
    assert train(small(steps=1), tmp_path)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path) -> None:
    train(small(), tmp_path / "run")
    train(small(), tmp_path / "whole")
    newest = checkpoint.path_of(tmp_path / "run" / "checkpoints", 60)
    newest.write_bytes(newest.read_bytes()[:-100])
    said: list[str] = []
    train(small(), tmp_path / "run", say=said.append)
    assert "is damaged" in said[0]
    assert "step 40" in said[1]
    assert_bitwise_equal(final_state(tmp_path / "run"), final_state(tmp_path / "whole"))


def test_no_undamaged_checkpoint_is_an_error(tmp_path: Path) -> None:
    train(small(), tmp_path)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="no undamaged checkpoint is left"):
        train(small(), tmp_path)
