"""Checkpoints: complete or not at all, verified, the newest kept."""

import hashlib
import io
import pickle
from pathlib import Path

import pytest
import torch

from eblvm.engine.errors import UserError
from eblvm.engine.runs import checkpoint


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


def saved(folder: Path, *steps: int) -> None:
    for step in steps:
        checkpoint.save(folder, step, {"step": step, "state": {"w": torch.full((2,), float(step))}}, keep=9)


def with_digest(path: Path, content: bytes) -> None:
    """A checkpoint file of any content, with the digest that fits it."""
    path.write_bytes(content)
    checkpoint.digest_of(path).write_text(hashlib.sha256(content).hexdigest())


@pytest.mark.parametrize("digest", [b"", bytes(64), b"\xff\xfe\xfd", b"no digest", b"0" * 64])
def test_a_damaged_digest_is_passed_over_and_repaired_if_all_are(
    digest: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, 10, 20)
    checkpoint.digest_of(checkpoint.path_of(tmp_path, 20)).write_bytes(digest)
    payload, passed_over = checkpoint.newest(tmp_path)
    assert payload is not None
    assert payload["step"] == 10
    assert len(passed_over) == 1

    checkpoint.digest_of(checkpoint.path_of(tmp_path, 10)).write_bytes(digest)
    payload, passed_over = checkpoint.newest(tmp_path)
    assert payload is not None
    assert payload["step"] == 20
    assert passed_over == []
    said = capsys.readouterr().err
    assert "warning: " in said
    assert "step-00000020.pt.sha256 is missing or damaged" in said
    assert checkpoint.read(checkpoint.path_of(tmp_path, 20))["step"] == 20


def test_a_digest_alone_does_not_make_a_damaged_checkpoint_good(tmp_path: Path) -> None:
    saved(tmp_path, 10)
    path = checkpoint.path_of(tmp_path, 10)
    content = bytearray(path.read_bytes())
    place = content.index(torch.full((2,), 10.0).numpy().tobytes())
    content[place] ^= 1
    path.write_bytes(content)
    checkpoint.digest_of(path).unlink()
    with pytest.raises(UserError, match="no undamaged checkpoint is left"):
        checkpoint.newest(tmp_path)


@pytest.mark.parametrize("content", [b"", b"hello", pickle.dumps({"step": 20}), b"PK\3\4" + bytes(100)])
def test_a_checkpoint_that_cannot_be_loaded_is_passed_over(content: bytes, tmp_path: Path) -> None:
    saved(tmp_path, 10)
    with_digest(checkpoint.path_of(tmp_path, 20), content)
    payload, passed_over = checkpoint.newest(tmp_path)
    assert payload is not None
    assert payload["step"] == 10
    assert "step-00000020.pt cannot be loaded" in passed_over[0]
    assert "\n" not in passed_over[0]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([1, 2], "is a list, expected a dict"),
        ({"version": 1}, "is of step None, expected that of its name"),
        ({"version": 1, "step": 19}, "is of step 19"),
        ({"version": 1, "step": "20"}, "is of step 20"),
        ({"version": 1, "step": 20, "state": 5}, "has no dict as 'state'"),
        ({"version": 1, "step": 20, "best": None}, "has no dict as 'best'"),
        ({"version": 1, "step": 20, "odd": True}, "is odd"),
    ],
)
def test_a_checkpoint_of_another_structure_is_passed_over(value: object, sentence: str, tmp_path: Path) -> None:
    def check(payload: dict) -> None:
        if "odd" in payload:
            raise UserError("the payload is odd")

    saved(tmp_path, 10)
    buffer = io.BytesIO()
    torch.save(value, buffer)
    with_digest(checkpoint.path_of(tmp_path, 20), buffer.getvalue())
    payload, passed_over = checkpoint.newest(tmp_path, check)
    assert payload is not None
    assert payload["step"] == 10
    assert sentence in passed_over[0]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="checkpoints is a link, expected a folder; nothing was written"):
        saved(tmp_path / "run" / "checkpoints", 10)
    assert list((tmp_path / "elsewhere").iterdir()) == []
