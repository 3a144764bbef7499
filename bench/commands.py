"""The commands that this package adds to `eblvm`, by its entry point."""

from eblvm.engine.cli import Command

COMMANDS = {
    "bench": Command("measure", "speed and memory against a plainly written research procedure", "eblvm.bench.cli"),
    "profile": Command("measure", "time and memory of a step over N and K", "eblvm.bench.profile_command"),
}
