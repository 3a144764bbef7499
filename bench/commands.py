"""The commands that this package adds to `eblvm`, by its entry point."""

from eblvm.engine.cli import Command

COMMANDS = {
    "bench": Command(
        "measure",
        "speed and memory against a plain procedure, another commit, other libraries",
        "eblvm.bench.cli",
    ),
    "reproduce": Command(
        "measure", "the papers' tables and figures: state, cost, how to run them", "eblvm.bench.reproduce_command"
    ),
    "profile": Command("measure", "time and memory of a step over N and K", "eblvm.bench.profile_command"),
}
