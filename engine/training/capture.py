"""A CUDA graph of a function: captured on a stream and from a memory pool of its own, and undone if that fails.

`torch.cuda.graph` leaves a failed capture half done: its exit first calls `capture_end`, which raises what CUDA thinks
of the capture. The stream of the capture then stays current, the allocator goes on taking memory from the graph's pool,
and every later step runs there. Hence begin and end are called here, where each failure is followed by its repair.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import torch

WARM_UP = 3
_unended: list[Any] = []  # torch's allocator of pinned memory keeps a pointer to a graph whose capture did not end


class UnusableDeviceError(RuntimeError):
    """A GPU on which nothing runs any more in this process."""


class Recorder(Protocol):
    def warm_up(self, run: Callable[[], None]) -> None: ...
    def capture(self, run: Callable[[], None]) -> None: ...
    def replay(self) -> None: ...


class CudaRecorder:
    """A CUDA graph, after a few runs on a side stream, as torch's notes on graphs ask for."""

    def __init__(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream: torch.cuda.Stream | None = None

    def warm_up(self, run: Callable[[], None]) -> None:
        """Run on the stream of the capture: kernels are compiled, algorithms chosen, libraries and NCCL ready."""
        outside, inside = torch.cuda.current_stream(), torch.cuda.Stream()
        self._stream = inside
        inside.wait_stream(outside)
        try:
            with torch.cuda.stream(inside):
                for _ in range(WARM_UP):
                    run()
        finally:
            outside.wait_stream(inside)

    def capture(self, run: Callable[[], None]) -> None:
        if self._stream is None:
            self.warm_up(run)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what the warm-up used: the graph's pool can have it
        graph, pool = torch.cuda.CUDAGraph(keep_graph=True), torch.cuda.graph_pool_handle()
        ended = False
        try:
            with torch.cuda.stream(self._stream):
                # The thread that decodes the next pictures may allocate meanwhile, NCCL's may ask for its events.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    run()
                except BaseException:  # is what went wrong; what the end says of it is not
                    with suppress(RuntimeError):
                        graph.capture_end()
                        ended = True
                    raise
                graph.capture_end()
                ended = True
            graph.instantiate()
        except BaseException:
            _undo(graph, pool, ended)
            raise
        self._graph = graph

    def replay(self) -> None:
        assert self._graph is not None, "nothing was captured"
        self._graph.replay()


def _undo(graph: Any, pool: Any, ended: bool) -> None:
    """Return the pool of a failed capture, and check that the GPU still works. A capture that has ended owns its pool
    and returns it itself; what torch has not done before another failure raises here, and is not needed."""
    if not ended:
        _unended.append(graph)
        for release in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
            with suppress(RuntimeError):
                release(torch.cuda.current_device(), pool)
    graph.reset()
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise UnusableDeviceError(str(error)) from error
