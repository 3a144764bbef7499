"""Minibatches from memory and from streamed pictures: the same for the same step, in any split, after any resume."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eblvm.engine.config import Config
from eblvm.engine.data.dataset import Dataset, check_input
from eblvm.engine.data.input import Input, Order, open_input
from eblvm.engine.data.pictures.framing import has_dali
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe

needs_dali = pytest.mark.skipif(not has_dali(), reason="DALI is not installed: pip install 'eblvm[dali]'")
PATHS = ["memory", "pillow", pytest.param("dali", marks=needs_dali)]
STEPS = 12  # 8 samples of 22 each: four epochs and more


def config_of(pictures: Path, tmp_path: Path, **changes: object) -> Config:
    base = recipe("celeba32").replaced(data=str(pictures), cache=str(tmp_path / "cache"), batch=8, flip=True)
    return base.replaced(**changes)


SEED = torch.tensor(3)


def opened(config: Config, dataset: Dataset, seed: Tensor, state: dict | None = None, **ranks: int) -> Input:
    """The input of a run."""
    running, batch = config.running, config.optimisation.batch
    return open_input(config.dataset, dataset, seed, batch, running.threads, state, **ranks)


@needs_dali
@pytest.mark.parametrize("seed", [SEED, torch.tensor([3, 4])], ids=["single", "replicas"])
@pytest.mark.parametrize("dequantize", [False, True])
def test_both_paths_give_the_same_batches(dequantize: bool, seed: Tensor, pictures: Path, tmp_path: Path) -> None:
    memory, dali = (config_of(pictures, tmp_path, input=name, dequantize=dequantize) for name in ("memory", "dali"))
    expected, streamed = (opened(c, c.load_data(), seed) for c in (memory, dali))
    for step in range(STEPS):
        v = expected.batch(step)
        assert v.shape == (*seed.shape, 8, 3, 32, 32)
        assert torch.equal(streamed.batch(step), v)
    assert torch.equal(streamed.batch(2), expected.batch(2))  # out of order: the pipeline starts anew
    assert torch.equal(streamed.batch(2), expected.batch(2))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dequantize", [False, True])
def test_ranks_share_the_global_batch(path: str, dequantize: bool, pictures: Path, tmp_path: Path) -> None:
    config = config_of(pictures, tmp_path, input=path, dequantize=dequantize)
    dataset = config.load_data()
    whole = opened(config, dataset, SEED)
    ranks = [opened(config, dataset, SEED, rank=rank, world=2) for rank in range(2)]
    for step in range(4):
        assert torch.equal(torch.cat([rank.batch(step) for rank in ranks]), whole.batch(step))


def test_flips_and_dequantisation_are_what_they_say() -> None:
    x = torch.arange(200 * 3 * 4 * 4).remainder(256).byte().view(200, 3, 4, 4)
    dataset, base = Dataset(x, x, x), recipe("celeba32").replaced(batch=200, flip=False)
    indices = Order(SEED, 200, 200).indices(0)
    plain = opened(base, dataset, SEED).batch(0)
    assert torch.equal(plain, x[indices].float() / 255)
    flipped = opened(base.replaced(flip=True), dataset, SEED).batch(0)
    same = (flipped == plain).flatten(1).all(1)
    mirrored = (flipped == plain.flip(-1)).flatten(1).all(1)
    assert (same ^ mirrored).all()
    assert 60 < int(mirrored.sum()) < 140
    noisy = opened(base.replaced(dequantize=True), dataset, SEED).batch(0) * 256 - x[indices]
    assert noisy.min() >= 0
    assert noisy.max() < 1
    assert abs(float(noisy.mean()) - 0.5) < 0.02
    assert noisy.unique().numel() > 9000
    with pytest.raises(UserError, match="flip and dequantize are for images of bytes"):
        check_input(base.replaced(flip=True).dataset, Dataset(x.float(), x, x))


READER = """
import json, os, signal, sys, torch
from pathlib import Path
from eblvm.engine.runs import checkpoint
from eblvm.engine.config import Config
from eblvm.engine.data.input import open_input
from eblvm.engine.data.pictures.framing import has_dali

has_dali()  # imported once, before the forks
torch.set_num_threads(1)
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
config = Config.from_json(json.loads((folder / "config.json").read_text()))

def read(rank, world, stop):
    name = f"rank{rank}of{world}"
    payload, _ = checkpoint.newest(folder / name)
    start, state = (payload["step"], payload["input"]) if payload else (0, None)
    optimisation, dataset = config.optimisation, config.load_data()
    seed = torch.tensor(optimisation.seed)
    batches = open_input(config.dataset, dataset, seed, optimisation.batch, 1, state, rank, world)
    for step in range(start, steps):
        keys = [bytes((255 * x).round().byte().numpy()).hex()[:400] for x in batches.batch(step)]
        with (folder / f"{name}.jsonl").open("a") as file:
            print(json.dumps([step, keys]), file=file)
        if step % 2 == 1:
            checkpoint.save(folder / name, step + 1, {"step": step + 1, "input": batches.state()}, 2)
        if step == stop:
            os.kill(os.getpid(), signal.SIGKILL)

for rank, world in ((0, 1), (0, 2), (1, 2)):
    for stop in (2, 7, None):
        child = os.fork()  # a process that can be killed without the seconds that imports take
        if child == 0:
            read(rank, world, stop)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == (0 if stop is None else signal.SIGKILL)
"""


def seen(folder: Path, rank: int, world: int) -> dict[int, list[str]]:
    """What a rank saw at each step; a step that a kill made it repeat must have given the same."""
    found: dict[int, list[str]] = {}
    repeated = 0
    for line in (folder / f"rank{rank}of{world}.jsonl").read_text().splitlines():
        step, keys = json.loads(line)
        repeated += step in found
        assert found.setdefault(step, keys) == keys, f"step {step} gave other samples after the resume"
    assert repeated == 1  # step 2; step 7 was saved before the kill
    return found


@pytest.mark.parametrize("path", PATHS)
def test_a_killed_reader_goes_on_with_the_same_samples(path: str, pictures: Path, tmp_path: Path) -> None:
    """One process and two, each killed twice: the unbroken order, and every sample of an epoch once."""
    config = config_of(pictures, tmp_path, input=path, flip=False, seed=3)
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    unbroken, size = opened(config, config.load_data(), SEED), len(config.load_data().train)
    expected = [
        bytes((255 * x).round().byte().numpy()).hex()[:400] for step in range(STEPS) for x in unbroken.batch(step)
    ]
    subprocess.run([sys.executable, "-c", READER, str(tmp_path), str(STEPS)], check=True)
    for world in (1, 2):
        ranks = [seen(tmp_path, rank, world) for rank in range(world)]
        stream = [key for step in range(STEPS) for rank in ranks for key in rank[step]]
        assert stream == expected
        for epoch in range(STEPS * 8 // size):
            assert len(set(stream[epoch * size : (epoch + 1) * size])) == size


@needs_dali
def test_the_state_is_that_of_the_last_minibatch_though_the_stream_is_ahead(pictures: Path, tmp_path: Path) -> None:
    config = config_of(pictures, tmp_path, input="dali")
    dataset = config.load_data()
    batches = opened(config, dataset, SEED)
    batches.batch(4)
    batches.batch(5)
    state = batches.state()
    assert (state["first"], state["next"]) == (4, 6)
    assert state["pipeline"].numel() > 0
    stream = opened(config, dataset, SEED, state).stream
    before = stream._pipeline
    assert torch.equal(stream.read(6).float() / 255, batches.batch(6))
    assert stream._pipeline is before  # it went on, and did not start anew


@needs_dali
def test_a_state_of_another_dali_is_refused(pictures: Path, tmp_path: Path) -> None:
    config = config_of(pictures, tmp_path, input="dali")
    dataset = config.load_data()
    batches = opened(config, dataset, SEED)
    assert batches.state() == {}
    batches.batch(0)
    state = batches.state() | {"dali": "1.99"}
    with pytest.raises(UserError, match=r"of DALI 1.99, installed is 2.* pip install 'eblvm\[dali\]'"):
        opened(config, dataset, SEED, state)


@needs_dali
def test_a_bad_picture_in_the_stream_is_named(pictures: Path, tmp_path: Path, capfd: object) -> None:
    config = config_of(pictures, tmp_path, input="dali")
    dataset = config.load_data()
    (pictures / "000004.jpg").write_bytes(b"no picture")
    batches = opened(config, dataset, SEED)
    with pytest.raises(UserError, match=r"000004.jpg cannot be read as a picture"):
        [batches.batch(step) for step in range(3)]


def test_missing_dali_names_the_extra(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    assert not has_dali()
    with pytest.raises(UserError, match=r"DALI cannot be imported .* pip install 'eblvm\[dali\]'"):
        config_of(pictures, tmp_path, input="dali").load_data()
    assert len(config_of(pictures, tmp_path).load_data().train) == 22


@needs_dali
def test_streamed_rows_can_be_indexed(pictures: Path, tmp_path: Path) -> None:
    streamed, memory = (config_of(pictures, tmp_path, input=name).load_data() for name in ("dali", "memory"))
    assert streamed.train.shape == memory.train.shape
    places = torch.tensor([[5, 0], [7, 7]])
    assert torch.equal(streamed.train[places], memory.train[places])
    assert torch.equal(streamed.train[3:9], memory.train[3:9])
    assert torch.equal(streamed.valid, memory.valid)
