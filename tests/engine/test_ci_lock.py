"""CI's lock file holds what pyproject.toml and constraints.txt ask for; `.ci/lock` makes it again."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXTRAS = ("test", "dev", "onnx", "hub")


def locked() -> dict[str, str]:
    text = (ROOT / ".ci/requirements.txt").read_text()
    rows = re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert len(rows) == text.count("==") == text.count("--hash")
    return dict(rows)


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in EXTRAS for one in project["optional-dependencies"][extra])]
    names = {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in wanted}
    assert {"torch", "pytest", "ruff"} < names
    assert names <= locked().keys()


def test_locked_versions_are_the_constrained_ones() -> None:
    rows = re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert rows
    for name, version in rows:
        assert locked()[name].startswith(version.removesuffix("*"))
