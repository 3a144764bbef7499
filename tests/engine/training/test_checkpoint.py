"""Checkpoints: complete or not at all, verified, the newest kept."""

from pathlib import Path

import pytest
import torch

from eblvm.engine.errors import UserError
from eblvm.engine.training import checkpoint


def test_round_trip_and_keep(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        checkpoint.save(tmp_path, step, {"step": step, "state": {"w": torch.full((2,), float(step))}}, keep=2)
    assert checkpoint.steps(tmp_path) == [30, 20]
    assert len(list(tmp_path.iterdir())) == 4
    payload, passed_over = checkpoint.newest(tmp_path)
    assert payload is not None
    assert payload["state"]["w"].tolist() == [30, 30]
    assert passed_over == []


def test_a_damaged_newer_one_does_not_push_out_what_is_good(tmp_path: Path) -> None:
    for step in (40, 60):
        checkpoint.save(tmp_path, step, {"step": step}, keep=2)
    checkpoint.path_of(tmp_path, 60).write_bytes(b"")
    payload, passed_over = checkpoint.newest(tmp_path)
    assert payload is not None
    assert payload["step"] == 40
    assert len(passed_over) == 1
    checkpoint.set_aside(tmp_path, after=40)
    checkpoint.save(tmp_path, 45, {"step": 45}, keep=1)
    assert checkpoint.steps(tmp_path) == [45]
    assert (tmp_path / "step-00000060.pt.damaged").exists()


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, {"step": 1}, keep=1)
    path = checkpoint.path_of(tmp_path, 1)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        checkpoint.read(path)


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "VERSION", 99)
    checkpoint.save(tmp_path, 1, {"step": 1}, keep=1)
    monkeypatch.undo()
    with pytest.raises(UserError, match="has format 99, expected 1"):
        checkpoint.read(checkpoint.path_of(tmp_path, 1))


def test_an_empty_folder_has_none(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])
