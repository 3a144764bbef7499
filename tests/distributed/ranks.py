"""Real processes over gloo: `on_ranks(n, function)` runs `function()` in each of them and returns all results."""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE_S = 120


def on_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Return the result of `function(*arguments)`, which must be importable, on every rank; pass on errors."""
    processes = multiprocessing.get_context("forkserver")  # torch is imported once, by the server
    processes.set_forkserver_preload(["torch", "eblvm.engine.training.loop"])
    with tempfile.TemporaryDirectory() as folder:
        ranks = [processes.Process(target=_rank, args=(r, size, folder, function, arguments)) for r in range(size)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
        answers = [torch.load(path, weights_only=False) for path in sorted(Path(folder).glob("answer-*"))]
    assert len(answers) == size, f"{size - len(answers)} of {size} ranks did not answer"
    for answer in answers:
        assert not isinstance(answer, str), answer
    return [answer[0] for answer in answers]


def _rank(rank: int, size: int, folder: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    answer: Any
    try:
        dist.init_process_group("gloo", f"file://{folder}/meeting", timedelta(seconds=60), rank=rank, world_size=size)
        answer = (function(*arguments),)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        answer = traceback.format_exc()
    torch.save(answer, f"{folder}/answer-{rank}")
