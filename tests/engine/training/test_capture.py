"""What a capture leaves behind when it fails, at every point, by a model of torch's own code (`capture_model`)."""

from collections.abc import Callable

import pytest
import torch

from eblvm.engine.training.capture import CudaRecorder, UnusableDeviceError
from tests.rehearsal.capture_model import DURING, Gpu, on


def step_on(gpu: Gpu) -> Callable[[], None]:
    """Return a step that fails inside of the capture where `gpu.fails` says so."""

    def run() -> None:
        if gpu.capturing is None:
            gpu.launch()
        elif gpu.fails == "invalidated":
            gpu.invalidate(DURING)
        elif gpu.fails == "inside":
            raise ValueError("no kernel for this")

    return run


def test_a_capture_that_succeeds_keeps_its_pool_and_nothing_else() -> None:
    with on(Gpu()) as gpu:
        recorder = CudaRecorder()
        recorder.warm_up(step_on(gpu))
        recorder.capture(step_on(gpu))
        recorder.replay()
        assert (gpu.ended, gpu.replays) == (1, 1)
        assert gpu.faults() == ["pool (0, 1) is kept"]
        gpu.launch()
        del recorder
        assert gpu.faults() == []


@pytest.mark.parametrize("point", Gpu.POINTS)
def test_the_next_plain_step_runs_after_a_failure(point: str) -> None:
    with on(Gpu(point)) as gpu:
        recorder = CudaRecorder()
        recorder.warm_up(step_on(gpu))
        with pytest.raises((RuntimeError, ValueError)) as failure:
            recorder.capture(step_on(gpu))
        assert gpu.faults() == []
        gpu.launch()
        said = {"inside": "no kernel for this", "invalidated": DURING, "instantiate": "out of memory"}
        assert said.get(point, "") in str(failure.value)


def test_the_model_finds_what_torchs_own_context_leaves() -> None:
    """The control: the same failures through `torch.cuda.graph`, which does not restore."""
    left = {}
    for point in Gpu.POINTS:
        with on(Gpu(point)) as gpu:
            graph = torch.cuda.CUDAGraph()
            with (
                pytest.raises((RuntimeError, ValueError)),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                step_on(gpu)()
            left[point] = gpu.faults()
    assert any("is current" in fault for fault in left["invalidated"])
    assert any("allocator still uses" in fault for fault in left["invalidated"])
    assert any("is kept" in fault for fault in left["no graph"])
    assert left["cudaStreamBeginCapture"]


def test_a_failure_of_the_warm_up_leaves_its_stream() -> None:
    def run() -> None:
        raise RuntimeError("CUDA out of memory")

    with on(Gpu()) as gpu:
        with pytest.raises(RuntimeError, match="out of memory"):
            CudaRecorder().warm_up(run)
        assert gpu.faults() == []
        gpu.launch()


def test_an_interrupt_inside_ends_the_capture() -> None:
    def run() -> None:
        if gpu.capturing is not None:
            raise KeyboardInterrupt

    with on(Gpu()) as gpu:
        with pytest.raises(KeyboardInterrupt):
            CudaRecorder().capture(run)
        assert gpu.faults() == []


def test_a_gpu_that_is_lost_is_said_to_be() -> None:
    """An error that sticks: only another process can use the GPU again."""

    def run() -> None:
        if gpu.capturing is not None:
            gpu.lost = "an illegal memory access was encountered"
            gpu.invalidate(gpu.lost)

    with on(Gpu()) as gpu, pytest.raises(UnusableDeviceError, match="illegal memory access"):
        CudaRecorder().capture(run)
