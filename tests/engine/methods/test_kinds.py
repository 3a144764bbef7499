"""A class that a user's file declares is a kind like the engine's own, from the moment it is imported."""

import subprocess
import sys
from pathlib import Path

MINE = """
from eblvm.engine.methods.base import Method
from eblvm.engine.methods.estimates import Loss
from eblvm.engine.options import option


class Mine(Loss):
    kind = "mine"
    estimators = ("exact", "bism")
    strength: float = option(1.0, "factor of the score", above=0)

    def __call__(self, estimate, batch, noise):
        return 0.5 * (self.strength * estimate.score()).square().sum(-1)


class Own(Method):
    kind = "own"
    patience: int = option(3, "steps to wait", low=1)
"""
TWIN = """
from eblvm.engine.methods.estimates import Loss


class Twin(Loss):
    kind = "mine"
"""
PROGRAM = """
from eblvm.engine.config import Config, who_reads
from eblvm.engine.errors import UserError
from eblvm.engine.methods import KINDS as METHODS, LOSSES
from eblvm.engine.recipes import recipe

losses, methods = list(LOSSES), list(METHODS)
import mine

assert set(LOSSES) - set(losses) == {"mine"}
assert set(METHODS) - set(methods) == {"mine", "bimine", "own"}
assert [kind for kind in METHODS if kind in methods] == methods  # in their old order
assert METHODS["bimine"].loss == mine.Mine()
config = recipe("checkerboard", method="bimine").replaced(strength=2.0)
config.check()
assert config["strength"] == 2.0
assert config.method.loss == mine.Mine(2.0)
assert Config.from_json(config.to_json()) == config
assert config.replaced(method="mine").method.kind == "mine"
assert who_reads("patience") == {"method": ["own"]}
assert recipe("checkerboard").replaced(method="own", patience=5)["patience"] == 5

import twin

for kinds in (LOSSES, METHODS):
    try:
        list(kinds)
    except UserError as error:
        assert "twin.Twin has the kind 'mine', which mine has already; give it another kind" in str(error), error
    else:
        raise AssertionError("two of one kind went unnoticed")
"""


def test_a_class_of_the_users_own(tmp_path: Path) -> None:
    for name, text in (("mine", MINE), ("twin", TWIN), ("program", PROGRAM)):
        (tmp_path / f"{name}.py").write_text(text)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
