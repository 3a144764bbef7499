"""Which GPU a process and its threads use, with a machine of two that is not there, and how a CPU computes."""

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from eblvm.bench.tools import device as bench_device
from eblvm.bench.tools import record, timing
from eblvm.engine.cli.train import for_gpu
from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset
from eblvm.engine.data.pictures.stream import gpu_of
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation import provenance
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.machine import (
    SUBNORMAL,
    full_products,
    own_device,
    set_products,
    set_repeatable,
    start_thread,
    subnormals_as_zero,
)
from eblvm.engine.recipes import recipe
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.training import distributed
from eblvm.engine.training.loop import train
from eblvm.engine.versions import versions


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs that were made the current one, in their order."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda d: found.append(d if isinstance(d, int) else d.index))
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_number_is_kept_and_made_the_current_one(chosen: list[int]) -> None:
    assert own_device("cuda:1") == "cuda:1"
    assert own_device("cuda") == "cuda:0"
    assert own_device("cpu") == "cpu"
    assert chosen == [1, 0]


def test_a_rank_has_its_own_gpu(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert own_device("cuda") == "cuda:1"
    assert chosen == [1]
    with pytest.raises(UserError, match="each with a GPU of its own"):
        own_device("cuda:0")


def test_gpus_that_are_not_there(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="cuda:0 to cuda:1"):
        own_device("cuda:2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UserError, match="smaller --nproc-per-node"):
        own_device("cuda")


def test_a_run_that_is_evaluated_by_torchrun(
    chosen: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--shard torchrun: every process works on its own GPU, at the precision of the run."""
    config = recipe("digits", "deep").replaced(precision="tf32", deterministic=True)
    monkeypatch.setattr("eblvm.engine.runs.saved.read_config", lambda folder: config)
    monkeypatch.setattr("eblvm.engine.runs.saved.expect_same_models", lambda *_: None)
    monkeypatch.setattr("eblvm.engine.runs.saved.payload_at", lambda *_: {})
    monkeypatch.setenv("LOCAL_RANK", "1")
    try:
        run = SavedRun.open(tmp_path, device="cuda", step=1)
        assert run.config.running.device == "cuda:1"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.deterministic
    finally:
        set_products("fp32")
        set_repeatable(False)
        torch.backends.cudnn.benchmark = False


def test_inception_is_full_fp32() -> None:
    """Beside a model in tf32 too."""
    kinds = []

    def net(images: Tensor) -> Tensor:
        kinds.append((torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision))
        return images.flatten(1).float()

    set_products("tf32")
    try:
        Extractor("a", "b", "c", 12, net)(torch.zeros(2, 3, 2, 2, dtype=torch.uint8))
        assert kinds == [("ieee", "ieee")]
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        set_products("fp32")


def product_flags() -> dict[str, object]:
    """Return torch's flags of fp32 products on CUDA, by its older names and by its newer ones, and those of the CPU."""
    backends = torch.backends
    return {
        "older": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()),
        "newer": tuple(x.fp32_precision for x in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn)),
        "cpu": (backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision),
    }


@pytest.mark.parametrize("before", ["fp32", "tf32"])
@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_other_code_can_read_the_precision(before: str, precision: str) -> None:
    """torch raises where a flag by its older name disagrees with the newer ones, in `cudnn.flags()` too."""
    allowed = precision == "tf32"
    cpu = product_flags()["cpu"]
    try:
        set_products(before)
        set_products(precision)
        found = product_flags()
        assert found["older"] == (allowed, allowed, "high" if allowed else "highest")
        assert found["newer"] == ("tf32" if allowed else "ieee",) * 3
        assert found["cpu"] == cpu
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=True):
            assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.allow_tf32 == allowed
    finally:
        set_products("fp32")


@pytest.mark.parametrize("matmul", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("convolution", ["none", "ieee", "tf32"])
def test_full_products_restores_every_flag(matmul: str, convolution: str) -> None:
    backends: Any = torch.backends
    backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = matmul == "tf32", convolution == "tf32"
    backends.cuda.matmul.fp32_precision = matmul
    backends.cudnn.conv.fp32_precision = backends.cudnn.rnn.fp32_precision = convolution
    before = product_flags()
    try:
        with full_products():
            assert product_flags()["newer"] == ("ieee",) * 3
            assert product_flags()["older"] == (False, False, "highest")
        assert product_flags() == before
    finally:
        set_products("fp32")


def test_dali_and_its_thread_are_told_the_gpu(chosen: list[int]) -> None:
    assert gpu_of(torch.device("cuda", 1)) == 1
    assert gpu_of(torch.device("cpu")) is None
    start_thread(1, torch.device("cuda", 1))
    assert chosen == [1]


def test_the_process_group_knows_its_gpu_and_its_patience(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2"), ("WORLD_SIZE", "2"), ("RANK", "1")):
        monkeypatch.setenv(name, value)
    given: dict[str, Any] = {}
    monkeypatch.setattr(dist, "rendezvous", lambda _: iter([(None, 1, 2)]))
    monkeypatch.setattr(dist, "PrefixStore", lambda *_: SimpleNamespace(clone=lambda: None))
    monkeypatch.setattr(distributed, "Peers", lambda *_: SimpleNamespace(stop=lambda: None))
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **how: given.update(how))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    with distributed.joined("cuda", 5.0):
        assert given["device_id"] == torch.device("cuda", 1)
        assert given["timeout"] == timedelta(minutes=5)


def test_deterministic() -> None:
    try:
        set_repeatable(True)
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
    finally:
        set_repeatable(False)
    assert torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()
    torch.backends.cudnn.benchmark = False


def test_a_recomputed_unroll_is_not_compiled() -> None:
    config: Config = recipe("digits", "deep").replaced(N=2, unroll_memory="recompute", compile=True)
    with pytest.raises(UserError, match="remove it or --compile"):
        config.check()


def test_versions_are_those_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """In records of a bench and in eval.json."""
    assert "grbm_bilevel=reference" in versions("cuda:1")["kernels"]
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU of {device}")
    made = record.make("schema", "name", "command", "cuda:1", {})
    assert made["machine"]["gpu"] == "GPU of cuda:1"
    assert made["versions"] == versions("cuda")
    samples = torch.zeros(3, 2)
    config = recipe("checkerboard").replaced(device="cuda:1")
    run = SavedRun(
        Path(), config, {"step": 1, "state": {"theta": {}, "phi": {}}}, custom_data=Dataset(samples, samples, samples)
    )
    assert provenance(run, "last")["versions"] == versions("cuda")


def test_the_rule_for_a_gpu_reads_the_runs_own(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its capability, and not that of GPU 0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if device == "cuda:1" else (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: device)
    config = for_gpu(recipe("cifar10").replaced(device="cuda:1"), Path("none"), [], None)
    assert config["precision"] == "tf32"


def test_a_gpu_is_timed_by_its_events(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one with a number: the host's time would be that of launches alone."""
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda _: 8.0)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    assert timing.elapsed_ms(lambda: None, 2, bench_device.chosen("cuda:1")) == 4.0
    assert chosen == [1]
    torch.backends.cudnn.benchmark = False


def flushed() -> bool:
    return float(torch.full((), SUBNORMAL) * 1) == 0


@pytest.mark.parametrize("before", [False, True])
def test_subnormals_are_zero_inside_only(before: bool) -> None:
    torch.set_flush_denormal(before)
    try:
        with subnormals_as_zero():
            assert flushed()
        assert flushed() == before
    finally:
        torch.set_flush_denormal(False)


def test_a_run_has_no_subnormals_and_leaves_the_caller_his(tmp_path: Path) -> None:
    seen = []

    def preview(run: SavedRun, may_take_long: bool) -> dict[str, Path]:
        seen.append(flushed())
        return {}

    config = recipe("checkerboard", method="bidsm").replaced(steps=2, validations=0, preview_every=1)
    train(config, tmp_path / "run", preview=preview)
    assert seen == [True, True]
    assert not flushed()
