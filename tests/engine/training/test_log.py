"""A run's log after damage: its sound rows, and a resumed run that goes on from them."""

import json
from pathlib import Path

import pytest

from eblvm.engine.errors import UserError
from eblvm.engine.runs.stats import read_rows
from eblvm.engine.training.log import Log

ROWS = [{"step": step, "loss": step / 3} for step in (1, 2, 3)]
LINES = [json.dumps(row).encode() + b"\n" for row in ROWS]


@pytest.mark.parametrize(
    ("content", "steps", "warned"),
    [
        (b"".join(LINES), [1, 2, 3], False),
        (b"".join(LINES)[:-1], [1, 2], False),
        (b"".join(LINES[:2]) + LINES[2][:8], [1, 2], False),
        (b"".join(LINES[:2]) + bytes(4096), [1, 2], False),
        (b"".join(LINES[:2]) + bytes(4096) + LINES[2], [1, 2, 3], False),
        (b"".join(LINES[:2]) + bytes(100) + b"\n" + LINES[2], [1, 2, 3], True),
        (LINES[0] + LINES[1][:9] + b"\n" + LINES[2], [1, 3], True),
        (LINES[0] + LINES[1][:9] + LINES[2] + LINES[2], [1, 3], True),
        (LINES[0] + b"\xff\xfe\n" + b"[" * 100_000 + b"\n5\n{}\n" + b'{"step": "x"}\n' + LINES[2], [1, 3], True),
        (b"", [], False),
        (bytes(50), [], False),
    ],
)
def test_damaged_lines_are_passed_over_and_dropped_on_resume(
    content: bytes, steps: list[int], warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "stats.jsonl"
    path.write_bytes(content)
    assert [row["step"] for row in read_rows(path)] == steps
    assert ("damaged lines are passed over" in capsys.readouterr().err) == warned
    log = Log(tmp_path, 3, 9, "test")
    log.write(4, {"loss": [0.5]})
    log.close()
    assert [row["step"] for row in read_rows(path)] == [*steps, 4]
    assert b"\0" not in path.read_bytes()


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "thesis.tex"
    target.write_text("chapter 1")
    for name in ("run", "new"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "stats.jsonl").symlink_to(target)
    log = Log(tmp_path / "run", 0, 9, "test")  # what is there is rewritten beside the link, and put in its place
    log.write(1, {"loss": [0.5]})
    log.close()
    assert target.read_text() == "chapter 1"
    (tmp_path / "new" / "stats.jsonl").symlink_to(tmp_path / "made.txt")
    with pytest.raises(UserError, match=r"stats.jsonl cannot be written .* it is a link, which is not followed"):
        Log(tmp_path / "new", 0, 9, "test")
    assert not (tmp_path / "made.txt").exists()
    (tmp_path / "run" / "tensorboard").rename(tmp_path / "board")
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "board")
    with pytest.raises(UserError, match="tensorboard is a link"):
        Log(tmp_path / "run", 0, 9, "test")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Log(tmp_path, 0, 9, "test")
    log.file.close()
    log.file = Path("/dev/full").open("a")  # noqa: SIM115
    with pytest.raises(UserError, match=r"stats.jsonl cannot be written \(No space left .* free some space"):
        log.write(1, {"loss": [0.5]})
    log.close()
    assert "warning: " in capsys.readouterr().err
