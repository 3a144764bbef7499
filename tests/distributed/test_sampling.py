"""`eblvm sample` over several processes draws what one process draws."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from eblvm.engine.cli import main
from eblvm.engine.sampling import langevin
from eblvm.engine.training import distributed
from tests.distributed.ranks import on_ranks

RUNS = {
    "deep": "digits --model deep --width 2 --latent 3 --head-width 5 --posterior-width 2 --batch 8",
    "bidvl": "digits --method bidvl --width 2 --latent 3 --posterior-width 2 --generator-width 2 --batch 8",
    "grbm": "checkerboard --batch 8",
}
DRAWN = [
    ("grbm", "--count 7 --steps 3"),
    ("deep", "--count 7 --steps 3"),
    ("deep", "--count 7 --steps 3 --kind conditional"),
    ("deep", "--count 2 --steps 1 --kind interpolation"),
    ("bidvl", "--count 7"),
    ("bidvl", "--count 3 --kind interpolation"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    for name, options in RUNS.items():
        assert main(["train", *options.split(), "--steps", "3", "--out", str(made / name)]) == 0
    return made


def drawn(folder: Path) -> list[Tensor]:
    """Return the samples of every case, on the first process."""
    samples = []
    for name, options in DRAWN:
        with patch.object(langevin, "FRAME_STEPS", 1):
            assert main(["sample", str(folder / name), *options.split()]) == 0
        file = "samples-" + options.split()[-1] if "--kind" in options else "samples"
        if distributed.is_first():  # it writes; the others may be ahead of it
            samples.append(torch.load(folder / name / f"{file}.pt"))
    return samples


def test_world_size_changes_no_sample(folder: Path) -> None:
    alone = drawn(folder)
    several, _ = on_ranks(2, drawn, folder)
    for actual, expected in zip(several, alone, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def too_few(folder: Path) -> int:
    return main(["sample", str(folder / "grbm"), "--count", "1"])


def test_fewer_samples_than_processes_is_an_error(folder: Path) -> None:
    assert on_ranks(2, too_few, folder) == [2, 2]
