"""`run(*words)`: the bench and profile commands as the command line calls them, without a process of their own."""

from collections.abc import Callable

import pytest
import torch

from eblvm.bench.cli import add_commands
from eblvm.engine.cli import Parser


@pytest.fixture
def run() -> Callable[..., None]:
    parser = Parser(prog="eblvm")
    add_commands(parser.add_subparsers(dest="command", parser_class=Parser))

    def call(*words: str) -> None:
        arguments = parser.parse_args(list(words))
        threads = torch.get_num_threads()
        try:
            arguments.run(arguments)
        finally:
            torch.set_num_threads(threads)

    return call
