"""The tiles of a launch on a GPU: measured at the first launch of a problem, kept in a file for later processes.

A launch inside the capture of a CUDA graph takes the tiles of an earlier launch: nothing is compiled or timed there.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor

from eblvm.kernels.runtime import tiles
from eblvm.kernels.runtime.tiles import MULTIPROCESSORS, Problem, Tiles

TIMED = 12  # of the model's best
Run = Callable[[Tiles], object]

_launched: dict[tuple[torch.device, Problem], Tiles] = {}


def launch(problem: Problem, like: Tensor, run: Run) -> None:
    """`run`, which launches a kernel on the device of `like`, with the tiles of the problem."""
    from torch._subclasses import FakeTensor

    if like.device.type != "cuda" or isinstance(like, FakeTensor):
        run(ranked(problem, like)[0])
        return
    key = (like.device, problem)
    if key not in _launched:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                f"{_described(problem)} got its first launch inside the capture of a CUDA graph; expected one before "
                "it, which compiles the kernel: run the same step once without capturing"
            )
        _launched[key] = _first_launch(problem, like, run)
    run(_launched[key])


def ranked(problem: Problem, like: Tensor) -> tuple[Tiles, ...]:
    """The candidates, the best by the model for the device of `like` first."""
    if like.device.type != "cuda":
        return tiles.ranked(problem, MULTIPROCESSORS)
    return tiles.ranked(problem, torch.cuda.get_device_properties(like.device).multi_processor_count)


def _first_launch(problem: Problem, like: Tensor, run: Run) -> Tiles:
    """The tiles of the file if they launch, else the fastest, which is written there; unmeasured by EBLVM_TUNE=0."""
    candidates, trial = ranked(problem, like), Trial(problem, run)
    if os.environ.get("EBLVM_TUNE", "1") == "0":
        return trial.first(candidates)
    device = torch.cuda.get_device_name(like.device)
    known, key = _known(device), "-".join(map(str, problem))
    if key in known and trial.launches(known[key]):
        return known[key]
    known[key] = trial.fastest(candidates)
    _write(device, known)
    return known[key]


class Trial:
    """Tiles of a problem, launched one after the other; those that do not compile or launch are passed over."""

    def __init__(self, problem: Problem, run: Run):
        self._problem, self._run = problem, run
        self._failed: dict[Tiles, Exception] = {}

    def launches(self, one: Tiles) -> bool:
        from triton.errors import TritonError

        try:
            self._run(one)
        except (TritonError, RuntimeError) as error:  # of the compiler; of its passes, the driver or torch
            self._failed[one] = error
        return one not in self._failed

    def first(self, candidates: Iterable[Tiles]) -> Tiles:
        """The first one that launches."""
        found = next(filter(self.launches, candidates), None)
        self._report(found is None)
        assert found is not None
        return found

    def fastest(self, candidates: tuple[Tiles, ...]) -> Tiles:
        """By time among the first ones, the fastest also with the registers that ptxas would give it."""
        from triton.testing import do_bench

        def milliseconds(one: Tiles) -> float:
            return float(do_bench(lambda: self._run(one), warmup=5, rep=20))

        times = {one: milliseconds(one) for one in candidates[:TIMED] if self.launches(one)}
        best = min(times, key=times.__getitem__) if times else self.first(candidates[TIMED:])
        free = best._replace(registers=None)
        times = {one: milliseconds(one) for one in (best, free) if self.launches(one)}
        self._report(False)
        return min(times, key=times.__getitem__)

    def _report(self, nothing_launches: bool) -> None:
        """One sentence about what failed; too much shared memory or too many registers is no fault."""
        from triton.runtime.errors import OutOfResources

        faults = {one: e for one, e in self._failed.items() if nothing_launches or not isinstance(e, OutOfResources)}
        if not faults:
            return
        one, error = next(iter(faults.items()))
        said = getattr(error, "error_message", None) or str(error) or "no message"  # the former without the source
        why = f"{one}: {type(error).__name__}: {said.strip().splitlines()[0]}"
        if nothing_launches:
            raise RuntimeError(
                f"{_described(self._problem)} launches with none of its {len(faults)} tiles, the first is {why}; "
                "set EBLVM_TRITON=0 to compute it with PyTorch"
            ) from error
        warnings.warn(
            f"{_described(self._problem)}: {len(faults)} tiles do not launch and are passed over, the first is {why}",
            RuntimeWarning,
            stacklevel=5,
        )


def _described(problem: Problem) -> str:
    p = problem
    sizes = f"batch {p.batch}, D={p.D}, H={p.H}" + (f", {p.replicas} replicas" if p.replicas > 1 else "")
    return f"the Triton kernel {p.kernel!r} ({p.plan}, {sizes}, {p.precision})"


@cache
def _known(device: str) -> dict[str, Tiles]:
    return _read(device)


def _read(device: str) -> dict[str, Tiles]:
    """The tiles by their problem; none where the file is absent or damaged."""
    try:
        return {key: Tiles(*numbers) for key, numbers in json.loads(_file(device).read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write(device: str, known: dict[str, Tiles]) -> None:
    """`known`, and what other processes have written meanwhile."""
    path = _file(device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(_read(device) | known, indent=1))
        scratch.replace(path)
    except OSError:
        pass  # tuned again by the next process


def _file(device: str) -> Path:
    """Of a device, and of the versions that its kernels are compiled from and with."""
    import triton

    folder = os.environ.get("EBLVM_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "eblvm")
    name = f"tiles-{device}-eblvm-{version('eblvm')}-triton-{triton.__version__}"
    return Path(folder) / f"{''.join(c if c.isalnum() or c == '.' else '-' for c in name)}.json"
