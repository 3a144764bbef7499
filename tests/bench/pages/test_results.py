"""Evaluated runs as a record: a run's command can be read back from its configuration."""

from pathlib import Path

import pytest

from eblvm.bench.measurements import results
from eblvm.engine import recipes
from eblvm.engine.cli import main
from eblvm.engine.cli.configuration import add_run_options, configuration
from eblvm.engine.cli.parser import Parser
from eblvm.engine.config import Config
from eblvm.engine.errors import UserError


@pytest.mark.parametrize(
    "config",
    [
        recipes.checkerboard(),
        recipes.checkerboard().replaced(method="ssm", replicas=10, lr=(1e-3, 1e-2), compile=True, ema=0.99),
        recipes.checkerboard().replaced(fused=False),
        recipes.recipe("digits", "deep").replaced(N=2, checkpoint="all"),
        recipes.recipe("mnist", small=True).replaced(compile=True, sigma_range=(0.1, 1.0)),
        recipes.freyface().replaced(method="bidsm", N=10, noise="fresh", unroll_optimizer="sgd", unroll_lr=0.5),
    ],
)
def test_command_gives_the_configuration_back(config: Config) -> None:
    words = results.command(config).split()
    assert words[:2] == ["eblvm", "train"]
    parser = Parser("train", add_help=False)
    add_run_options(parser)
    assert configuration(parser, parser.parse(words[2:])) == config


def test_collects_evaluated_runs(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["train", "checkerboard", "--method", "dsm", "--steps", "5", "--out", str(out)]) == 0
    with pytest.raises(UserError, match=r"has no eval\.json; run 'eblvm eval"):
        results.row(out)
    assert main(["eval", str(out)]) == 0
    row = results.row(out)
    assert row["command"] == "eblvm train checkerboard --method dsm --steps 5"
    assert row["by_replica"] == [row["mean"]["test_log_likelihood"]]
