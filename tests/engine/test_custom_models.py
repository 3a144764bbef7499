"""docs/models.md is a program: it runs here as it stands there."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_pages_program_trains(tmp_path: Path, capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names = {"out": tmp_path / "separable", "joint_out": tmp_path / "joint"}
    exec("\n".join(blocks), names)
    for folder in ("separable", "joint"):
        rows = [json.loads(line) for line in (tmp_path / folder / "stats.jsonl").read_text().splitlines()]
        assert rows[-1]["step"] == 200
        assert rows[-1]["validation"] < rows[0]["validation"]
