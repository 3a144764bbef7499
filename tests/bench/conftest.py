"""`run(*words)`: the bench and profile commands as the command line calls them, without a process of their own."""

import importlib
from collections.abc import Callable

import pytest
import torch

from eblvm.bench.commands import COMMANDS


@pytest.fixture
def run() -> Callable[..., None]:
    def call(command: str, *words: str) -> None:
        threads = torch.get_num_threads()
        try:
            importlib.import_module(COMMANDS[command].module).main(list(words))
        finally:
            torch.set_num_threads(threads)

    return call
