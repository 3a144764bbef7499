"""A run that continues with another number of processes, 2 -> 4 -> 1, gives the result of one process, in fp64."""

from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine.cli import main
from eblvm.engine.runs import checkpoint
from eblvm.engine.runs.stats import read_rows
from tests.distributed.ranks import on_ranks

SMALL = "--batch 8 --dtype float64 --log-every 4 --validations 0 --ema 0.9 --steps"
DEEP = f"digits --model deep --width 2 --latent 3 --head-width 5 --posterior-width 2 --N 2 --K 1 {SMALL}"
RUNS = {
    "bimdsm": DEEP,
    "pcd": f"checkerboard --method pcd --sweeps 2 {SMALL}",  # its chains move from rank to rank
    "ksd": f"checkerboard --method ksd {SMALL}",
}
WORLDS = (2, 4, 1)
STEPS = 4  # on each


def stages(folder: str, stage: int) -> list[int]:
    """Train stage number `stage` of all runs; return their exit codes on this rank."""
    first = [["train", *line.split(), str(STEPS), "--out", f"{folder}/{name}"] for name, line in RUNS.items()]
    later = [["train", "--resume", f"{folder}/{name}", "--steps", str(STEPS * (stage + 1))] for name in RUNS]
    return [main(words) for words in (later if stage else first)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return folders of (runs of one process, runs whose number of processes changes)."""
    one, elastic = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("elastic")
    for name, line in RUNS.items():
        assert main(["train", *line.split(), str(STEPS * len(WORLDS)), "--out", str(one / name)]) == 0
    for stage, world in enumerate(WORLDS):
        codes = on_ranks(world, stages, str(elastic), stage) if world > 1 else [stages(str(elastic), stage)]
        assert codes == [[0] * len(RUNS)] * world
    return one, elastic


@pytest.mark.parametrize("name", RUNS)
def test_a_change_of_world_size_changes_nothing(name: str, folders: tuple[Path, Path]) -> None:
    (expected, _), (actual, _) = (checkpoint.newest(folder / name / "checkpoints") for folder in folders)
    assert expected is not None
    assert actual is not None
    assert actual["step"] == STEPS * len(WORLDS)
    for x, y in zip(tree_flatten(expected["state"])[0], tree_flatten(actual["state"])[0], strict=True):
        torch.testing.assert_close(y, x, rtol=0, atol=1e-10)
    rows = [read_rows(folder / name / "stats.jsonl") for folder in folders]
    assert [row["step"] for row in rows[1]] == [4, 8, 12]
    for a, b in zip(*rows, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-9)
