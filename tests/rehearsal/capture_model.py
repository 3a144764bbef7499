"""A model of CUDA's captures under torch 2.13: streams, both allocators, graphs, and every point where one can fail.

It follows aten/src/ATen/cuda/CUDAGraph.cpp statement by statement, as `torch.cuda.CUDAGraph` runs it: which statement
comes before which decides what a failure leaves behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

Pool = tuple[int, int]
DURING = "operation not permitted when stream is capturing"
INVALIDATED = "operation failed due to a previous error during capture"


class Stream:
    def __init__(self, gpu: Gpu, name: str = "a stream"):
        self.gpu, self.name = gpu, name
        self.capture: Graph | None = None  # that records what is launched here

    def wait_stream(self, other: Stream) -> None:
        if self.capture is not None and other.capture is None:
            self.gpu.invalidate("dependency created on uncaptured work in another stream")
        self.capture = self.capture or other.capture  # forked from a capture: a part of it

    def synchronize(self) -> None:
        self.gpu.synchronize()


class Gpu:
    """One GPU. `fails` names the point that fails: one of POINTS."""

    POINTS = (
        "begin",  # before anything has happened
        "cudaStreamBeginCapture",  # the allocators already use the pool
        "invalidated",  # inside: CUDA refuses an operation, and later the end
        "inside",  # an error of Python, which CUDA knows nothing of
        "no graph",  # cudaStreamEndCapture succeeds with an empty result
        "nodes",  # cudaGraphGetNodes, the last call of an end
        "instantiate",  # out of memory for the executable graph
    )

    def __init__(self, fails: str = "") -> None:
        self.fails, self.lost = fails, ""  # lost: what every later call says, after an error that sticks
        self.default = Stream(self, "the default stream")
        self.current = self.default
        self.capturing: Graph | None = None
        self.device_pools: dict[Pool, Graph] = {}  # that the allocators take memory from, each by a filter of a graph
        self.host_pools: dict[Pool, Graph] = {}
        self.uses: Counter[Pool] = Counter()
        self.handles = self.ended = self.replays = 0

    def invalidate(self, error: str) -> None:
        """Refuse an operation during a capture, which ends it in CUDA's eyes."""
        if self.capturing is not None:
            self.capturing.invalid = True
        raise RuntimeError(f"CUDA error: {error}")

    def synchronize(self, *_: Any) -> None:
        if self.lost:
            raise RuntimeError(f"CUDA error: {self.lost}")
        if self.capturing is not None:
            self.invalidate(DURING)

    def empty_cache(self) -> None:
        if self.capturing is not None:
            self.invalidate(DURING)

    def pool_handle(self) -> Pool:
        self.handles += 1
        return (0, self.handles)

    def end_pool(self, device: int, pool: Pool) -> None:
        if pool not in self.device_pools:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        del self.device_pools[pool]

    def release_pool(self, device: int, pool: Pool) -> None:
        if not self.uses[pool]:
            raise RuntimeError("graph_pools.end() INTERNAL ASSERT FAILED")
        self.uses[pool] -= 1

    def launch(self) -> None:
        """Launch a kernel, with memory for its result, outside of a capture."""
        if self.lost:
            raise RuntimeError(f"CUDA error: {self.lost}")
        if self.current.capture is not None:
            raise RuntimeError(f"CUDA error: {INVALIDATED}" if self.current.capture.invalid else "recorded, not run")
        for graph in (*self.device_pools.values(), *self.host_pools.values()):
            assert not graph.destroyed, "the allocator calls the filter of a graph that is gone"
        if self.device_pools:
            raise RuntimeError("memory from the pool of a capture that has ended")

    def faults(self) -> list[str]:
        """Say what a later step would trip over."""
        left = [f"{self.current.name} is current"] if self.current is not self.default else []
        left += ["a capture is under way"] if self.capturing is not None else []
        left += [f"the allocator still uses pool {pool}" for pool in self.device_pools]
        left += [f"pool {pool} is kept" for pool, uses in self.uses.items() if uses]
        pools = (*self.device_pools.values(), *self.host_pools.values())
        return left + ["a filter of a graph that is gone" for graph in pools if graph.destroyed]


class StreamContext:
    """`torch.cuda.stream`; a generator would restore the stream when it is collected, which torch's does not."""

    def __init__(self, stream: Stream):
        self.stream = stream

    def __enter__(self) -> None:
        self.before, self.stream.gpu.current = self.stream.gpu.current, self.stream

    def __exit__(self, *_: object) -> None:
        self.stream.gpu.current = self.before


class Graph:
    """`torch.cuda.CUDAGraph`."""

    def __init__(self, gpu: Gpu, keep_graph: bool = False):
        self.gpu, self.keep_graph = gpu, keep_graph
        self.pool: Pool = (0, 0)
        self.stream = gpu.default
        self.invalid = self.capture_ended = self.executable = self.destroyed = False

    def capture_begin(
        self, pool: Pool | None = None, capture_error_mode: str = "global", check_input_liveness: bool = False
    ) -> None:
        gpu = self.gpu
        assert capture_error_mode == "thread_local", "another thread's allocation would end the capture"
        if gpu.fails == "begin" or gpu.current is gpu.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.stream, self.pool = gpu.current, pool or gpu.pool_handle()
        gpu.device_pools[self.pool] = gpu.host_pools[self.pool] = self
        gpu.uses[self.pool] += 1
        if gpu.fails == "cudaStreamBeginCapture":
            raise RuntimeError("CUDA error: cudaStreamBeginCapture")
        self.stream.capture = gpu.capturing = self

    def capture_end(self) -> None:
        gpu = self.gpu
        if gpu.current is not self.stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if gpu.capturing is not self:
            raise RuntimeError("CUDA error: invalid argument")
        self.stream.capture = gpu.capturing = None
        if self.invalid:
            raise RuntimeError(f"CUDA error: {INVALIDATED}")
        gpu.end_pool(0, self.pool)
        del gpu.host_pools[self.pool]
        if gpu.fails == "no graph":
            raise RuntimeError("Invalid capture.")
        if gpu.fails == "nodes":
            raise RuntimeError("CUDA error: cudaGraphGetNodes")
        self.capture_ended = True
        gpu.ended += 1
        if not self.keep_graph:
            self.instantiate()

    def instantiate(self) -> None:
        if self.gpu.fails == "instantiate":
            raise RuntimeError("CUDA error: out of memory")
        self.executable = True

    def replay(self) -> None:
        assert self.executable
        self.gpu.replays += 1

    def reset(self) -> None:
        if self.capture_ended:
            self.gpu.release_pool(0, self.pool)
            self.capture_ended = False
        self.executable = False

    def __del__(self) -> None:
        self.reset()
        self.destroyed = True


@contextmanager
def on(gpu: Gpu) -> Iterator[Gpu]:
    """Let `torch.cuda` work on `gpu`."""
    with ExitStack() as patches:
        for name, replacement in replacements(gpu).items():
            patches.enter_context(patch.object(torch.cuda, name, replacement))
        for name, replacement in allocator(gpu).items():
            patches.enter_context(patch.object(torch._C, name, replacement, create=True))
        if not torch.cuda.is_available():
            patches.enter_context(patch.object(torch.cuda, "current_device", lambda: 0))
        patches.enter_context(patch.object(torch.cuda.graph, "default_capture_stream", None))
        yield gpu


def replacements(gpu: Gpu) -> dict[str, Callable[..., Any]]:
    """Return what replaces the names of `torch.cuda`."""
    return {
        "Stream": lambda *_: Stream(gpu),
        "current_stream": lambda *_: gpu.current,
        "stream": StreamContext,
        "synchronize": gpu.synchronize,
        "empty_cache": gpu.empty_cache,
        "graph_pool_handle": gpu.pool_handle,
        "is_current_stream_capturing": lambda: gpu.current.capture is not None,
        "CUDAGraph": lambda keep_graph=False: Graph(gpu, keep_graph),
    }


def allocator(gpu: Gpu) -> dict[str, Callable[..., Any]]:
    """Return what replaces the names of `torch._C`."""
    return {
        "_cuda_endAllocateToPool": gpu.end_pool,
        "_cuda_releasePool": gpu.release_pool,
        "_host_emptyCache": lambda: None,
    }
