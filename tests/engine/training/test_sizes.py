"""Sizes and numbers that cannot work are refused with the limit, before anything is allocated."""

from pathlib import Path

import pytest
import torch

from eblvm.engine.cli import main
from eblvm.engine.errors import UserError
from eblvm.engine.machine import own_device


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("checkerboard --lr 1e308", "got lr=(1e+308,), expected 0 or a size between 1e-18 and 1e+18"),
        ("checkerboard --sigma 1e-300", "expected 0 or a size between"),
        ("checkerboard --latent 5000000000", "got latent=5000000000, expected a whole number of at most 1,000,000"),
        ("checkerboard --threads 5000", "got threads=5000, expected 1 to 1024"),
        ("checkerboard --seed 9223372036854775808", "got seed=9223372036854775808, expected 0 to"),
        ("checkerboard --device meta", "expected cpu or cuda"),
        ("checkerboard --device mps", "expected cpu or cuda"),
        ("checkerboard --method bidsm --N 2000000", "got N=2000000, expected a whole number of at most 1,000,000"),
        ("digits --model deep --width 1000000", "parameters, which take"),
        ("digits --latent 1000000 --replicas 9000 --method dsm", "x 9000 replicas, which take"),
        ("digits --model mlp --depth 101", "expected 1 to 100"),
    ],
)
def test_what_cannot_work(options: str, sentence: str, tmp_path: Path, capsys) -> None:
    assert main(["train", *options.split(), "--steps", "1", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_the_limit_of_the_memory_is_said(tmp_path: Path, capsys) -> None:
    assert main(["train", "digits", "--model", "deep", "--width", "1000000", "--out", str(tmp_path / "run")]) == 2
    assert "the limit is the " in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["sample x --count 100000000000", "eval x --chains 9999999999"])
def test_counts_of_samples(arguments: str, capsys) -> None:
    assert main(arguments.split()) == 2
    assert "expected at most" in capsys.readouterr().err


def test_a_gpu_that_is_not_there(monkeypatch) -> None:
    with pytest.raises(UserError, match="got device 'cuda', but torch sees no CUDA device here"):
        own_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    assert own_device("cuda:1") == "cuda:1"
    with pytest.raises(UserError, match="got device='cuda:2' on a machine with 2 GPUs, expected cuda:0 to cuda:1"):
        own_device("cuda:2")
