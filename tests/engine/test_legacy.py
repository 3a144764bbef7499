"""Runs of older versions: read, sampled and continued to the same bits.

`tests/data/runs` has a run of each format of config.json, of 6 steps with the checkpoints of steps 3 and 6: format 1 is
one flat record of options, here of BiDVL, whose options have other names today and whose nets have buffers; format 2
is the tree, here of replicas with a moving average; format 3 has the options of the step in a node of their own, here
chunks of 5 samples with the moving averages of both nets. `tests/data/configs-format-1.json` has flat records of 24
runs, one per method or option."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine.config import FORMAT, Config
from eblvm.engine.methods.base import from_tree, to_tree
from eblvm.engine.recipes import recipe
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.folder import read_config
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling import sampler_of
from eblvm.engine.training.loop import train
from eblvm.kernels.runtime.dispatch import native_status

DATA = Path(__file__).parents[1] / "data"
RUNS = sorted((DATA / "runs").iterdir())
FLAT = json.loads((DATA / "configs-format-1.json").read_text())
# Other instructions round otherwise, and torch's library chooses its products by the vendor too: there the end is
# compared to rounding.
MADE_ON = {
    "format-1": ("AVX512", "GenuineIntel"),
    "format-2": ("AVX512", "AuthenticAMD"),
    "format-3": ("AVX512", "AuthenticAMD"),
}
NEEDS_NATIVE = {"format-2"}  # made by the native kernels of a fused step, which round otherwise than their references
PROCESSOR = Path("/proc/cpuinfo")


def rounds_as_then(name: str) -> bool:
    if name in NEEDS_NATIVE and not native_status("grbm_bilevel")[0]:
        return False
    capability, vendor = MADE_ON[name]
    is_vendor = PROCESSOR.exists() and vendor in PROCESSOR.read_text()
    return is_vendor and torch.backends.cpu.get_cpu_capability() == capability


@pytest.mark.parametrize("old", RUNS, ids=lambda p: p.name)
def test_a_run_continues_to_the_same_bits(old: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(old, folder)
    for path in (folder / "checkpoints").glob("step-00000006*"):
        path.unlink()
    assert train(read_config(folder), folder)
    ends = [checkpoint.read(checkpoint.path_of(f / "checkpoints", 6)) for f in (old, folder)]
    ends[0]["state"] = to_tree(from_tree(ends[0]["state"], torch.device("cpu")))  # with today's names
    (before, spec), (now, now_spec) = (tree_flatten({k: end[k] for k in ("state", "best")}) for end in ends)
    assert spec == now_spec
    bitwise = rounds_as_then(old.name)
    for x, y in zip(before, now, strict=True):
        if not isinstance(x, torch.Tensor):
            assert x == y or not bitwise
        elif bitwise:
            assert torch.equal(x, y)
        else:
            torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-4)


def test_there_is_a_run_of_every_format() -> None:
    formats = {run.name: json.loads((run / "config.json").read_text()).get("format", 1) for run in RUNS}
    assert formats == {f"format-{n}": n for n in range(1, FORMAT + 1)}
    assert len(FLAT) == 24
    assert json.loads((DATA / "runs" / "format-1" / "config.json").read_text()) == FLAT["digits-bidvl"]


@pytest.mark.parametrize("name", FLAT)
def test_every_value_of_the_old_record_that_the_run_reads_is_in_the_tree(name: str) -> None:
    flat = FLAT[name]
    config = Config.from_json(flat)
    read = {leaf.name: leaf.value for leaf in config.leaves()}
    same = [
        n for n in flat if n in read and not (flat["method"] == "bidvl" and n == "divergence") and n != "memory_budget"
    ]
    assert len(same) > 20
    for option in same:
        value = tuple(flat[option]) if isinstance(flat[option], list) else flat[option]
        assert read[option] == value, option
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_bidvl_keeps_its_renamed_options() -> None:
    flat = FLAT["digits-bidvl"]
    config = Config.from_json(flat)
    assert (config["ratio_bias"], config["opposite"]) == (flat["bidvl_bias"], flat["bidvl_opposite"])
    assert (config["ratio"], config["upper"]) == (flat["bidvl_ratio"], flat["bidvl_upper"])


@pytest.mark.parametrize(
    ("old", "shape"),
    list(zip(RUNS, [(3, 1, 8, 8), (3, 2), (3, 2)], strict=True)),
    ids=lambda p: getattr(p, "name", None),
)
def test_an_old_run_can_be_sampled(old: Path, shape: tuple[int, ...]) -> None:
    run = SavedRun.open(old)
    samples = sampler_of(run).sample(run, "best", 3).values
    assert samples.shape == shape
    assert torch.isfinite(samples).all()


def as_format_2(config: Config) -> dict[str, Any]:
    """Return what version 2 wrote: the options of the step were in `running`."""
    values = config.to_json() | {"format": 2}
    return values | {"running": values["running"] | values.pop("step")}


def test_format_2_had_the_step_in_running() -> None:
    options = {"compile": True, "memory_budget": 0.5, "fused": False, "graphs": False, "log_every": 7}
    config = recipe("digits").replaced(**options)
    saved = as_format_2(config)
    assert "step" not in saved
    assert saved["running"]["compile"] is True
    assert Config.from_json(json.loads(json.dumps(saved))) == config
    chunks = recipe("digits", "deep").replaced(micro_batch=3)
    found = Config.from_json(as_format_2(chunks))
    assert (found, found.step.micro_batch) == (chunks, 3)
    assert found.to_json()["format"] == 3
    assert found.to_json()["step"]["micro_batch"] == 3
    assert "micro_batch" not in found.to_json()["running"]


def test_format_2_without_options_of_the_step_has_their_defaults() -> None:
    saved = recipe("digits").to_json() | {"format": 2}
    del saved["step"]
    assert Config.from_json(saved) == recipe("digits")


@pytest.mark.parametrize("step", [None, 0.05])
def test_a_langevin_step_of_old_is_half_of_alpha(step: float | None) -> None:
    """In both older forms; none was 2e-4 per latent unit, twice what it is today."""
    flat = FLAT["digits-vages-mdsm"] | {"langevin_step": step}
    expected = 2 * (step or 2e-4 * flat["latent"])
    config = Config.from_json(flat)
    assert config["langevin_alpha"] == expected
    tree_form = as_format_2(config)
    del tree_form["method"]["estimator"]["langevin_alpha"]
    tree_form["method"]["estimator"]["langevin_step"] = step
    assert Config.from_json(tree_form) == config
