"""One example of every fault that a rehearsal must detect.

Faults of whole runs have tests of their own. Each was seen to fail with its fault put back:

    `cuda` unresolved, or another rank's GPU        run: grbm, network, pictures; engine/test_device.py
    a thread without its GPU, DALI on GPU 0         run: pictures; engine/test_device.py
    a minibatch copied on the training stream       run: pictures
    rank 0's tensors sent from its GPU              run: grbm
    process group without GPU or timeout            run: grbm; engine/test_device.py
    the plan reads another GPU's memory             run: network
    precision, --deterministic not set              run: network, grbm; for evaluation engine/test_device.py
    Inception in tf32, versions of the CPU          engine/test_device.py
    the critic on the host                          part: critic
    apex through another memory order               engine/optim/test_apex_launch.py
    --compile --unroll-memory recompute             engine/test_device.py
    --graphs without the compiled step              engine/training/test_graphs.py
    a GPU timed by the host, the bench's copies     engine/test_device.py; part: bench_of_a_grbm
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from eblvm.kernels.philox import triton
from tests.rehearsal.watch import Watch


def on_gpu(*shape: int, **how: Any) -> Tensor:
    return torch.empty(shape, device="cuda", **how)


def launch(x: Tensor, grid: tuple[int, ...] = (1, 1)) -> None:
    triton.philox_kernel[grid](x, on_gpu(4), 0, 0, 0, 1, 4, KIND=2, BLOCK=128)


def mapped() -> None:
    torch.vmap(lambda x: (launch(x), x)[1])(on_gpu(2, 3))


FAULTS: dict[str, Callable[[], object]] = {
    "a wait": lambda: on_gpu(3).sum().item(),
    "a wait for a size": lambda: on_gpu(3).equal(on_gpu(3)),
    "a copy to the device": lambda: torch.empty(3).to("cuda"),
    "a copy to the host": lambda: on_gpu(3).cpu(),
    "a number made on the host": lambda: torch.tensor(1.0, device="cuda"),
    "two devices": lambda: on_gpu(3) + torch.empty(3),
    "two GPUs": lambda: on_gpu(3) + torch.empty(3, device="cuda:1"),
    "a native op": lambda: torch.ops.eblvm.philox(on_gpu(dtype=torch.int64), 0, 0, 1, 4, 0, 2),
    "a kernel's argument on the host": lambda: launch(torch.empty(3)),
    "a kernel's argument on the other GPU": lambda: launch(torch.empty(3, device="cuda:1")),
    "a kernel's argument with gaps": lambda: launch(on_gpu(6)[::2]),
    "a kernel's argument wrapped by vmap": mapped,
    "a grid too large": lambda: launch(on_gpu(3), (1, 70_000)),
    "an empty grid": lambda: launch(on_gpu(3), (0, 1)),
}


def found_in(fault: Callable[[], object]) -> list[str]:
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        try:
            fault()
        except Exception as error:
            return [repr(error)]
    return [*watch.problems, *watch.waits, *watch.copies]
