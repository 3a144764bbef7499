"""A late step of a run, with subnormal numbers and with zeros in their place."""

from pathlib import Path

from eblvm.bench.measurements import subnormals
from eblvm.engine.recipes import recipe
from eblvm.engine.training.loop import train


def test_the_record_of_a_run(tmp_path: Path) -> None:
    train(recipe("checkerboard", method="bidsm").replaced(steps=3, validations=0), tmp_path / "run")
    made = subnormals.run(tmp_path / "run", 1)
    assert [row["case"] for row in made["rows"]] == ["step 0", "step 3", "step 3, subnormals as zero"]
    assert made["rows"][0]["to_the_first"] == 1
    assert all(row["ms"] > 0 for row in made["rows"])
    assert str(tmp_path) not in str(made)
