"""One example of everything that a rehearsed capture must find, planted in the captured step."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from eblvm.engine.recipes import recipe
from tests.rehearsal.capture_model import DURING
from tests.rehearsal.captures import Captured
from tests.rehearsal.faults import launch, on_gpu

SMALL = recipe("freyface").replaced(latent=8, batch=6, N=0, K=1, device="cuda")
SHAPE = (20,)
REFUSED = f"cannot be captured (CUDA error: {DURING})"
kept: list[Tensor] = []


def on_another_stream() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        on_gpu(3).fill_(1)


def joined_from_outside() -> None:
    torch.cuda.current_stream().wait_stream(torch.cuda.Stream())


def of_memory_that_goes() -> None:
    """Read a tensor that was made before the capture, and goes with this call."""
    kept.pop().add_(1)


CAPTURE_FAULTS: dict[str, tuple[Callable[[], object], str]] = {
    "a number that is read": (lambda: on_gpu(3).sum().item(), REFUSED),
    "a copy from the host": (lambda: torch.empty(3).to("cuda"), REFUSED),
    "a copy to the host": (lambda: on_gpu(3).cpu(), REFUSED),
    "a wait for the device": (lambda: torch.cuda.synchronize(), REFUSED),
    "work from outside": (joined_from_outside, "dependency created on uncaptured work in another stream"),
    "a kernel compiled inside": (lambda: launch(on_gpu(17)), "triton philox_kernel is new inside of the capture"),
    "a convolution tried out inside": (
        lambda: torch.conv2d(on_gpu(1, 1, 9, 9), on_gpu(1, 1, 2, 2)),
        "convolution is new inside of the capture",
    ),
    "a collective of the host": (lambda: dist.all_reduce(torch.zeros(1)), "allreduce_ of cpu cannot be captured"),
    "a barrier": (dist.barrier, "barrier of cpu cannot be captured"),
    "another stream": (on_another_stream, "on a stream outside of the capture"),
    "memory that is kept": (lambda: kept.append(on_gpu(5, 7)), "memory of the graph is kept: (5, 7)"),
    "memory that goes": (of_memory_that_goes, "the graph reads memory that is gone: (3, 11)"),
}


def found_in_a_capture(name: str) -> list[str]:
    """Return what is said of a fault, if it is what should be, and of the GPU, if the next step could not run on it."""
    fault, sentence = CAPTURE_FAULTS[name]
    kept.clear()

    def before() -> None:
        if name == "memory that goes":
            kept.append(on_gpu(3, 11))

    captured = Captured(SMALL, SHAPE, 2, lambda: fault(), before)
    kept.clear()
    said = [*captured.watch.problems, *captured.memory, *captured.said]
    assert captured.gpu.faults() == []
    return [one for one in said if sentence in one]
