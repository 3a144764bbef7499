"""The recorded launches of every case: bench/records/launches.json."""

import json
from pathlib import Path

import torch

PATH = Path(__file__).resolve().parents[2] / "bench" / "records" / "launches.json"
SCHEMA = "eblvm-launches/1"
ALLOWED = 0.02  # growth


def read() -> dict[str, int]:
    facts = json.loads(PATH.read_text())
    assert facts["schema"] == SCHEMA
    return facts["launches"]


def write(launches: dict[str, int]) -> None:
    facts = {"schema": SCHEMA, "torch": torch.__version__.split("+")[0], "launches": launches}
    PATH.write_text(json.dumps(facts, indent=1) + "\n")
