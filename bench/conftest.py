"""`pytest bench --action FILE`: the medians for github-action-benchmark, next to pytest-benchmark's output."""

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--action", metavar="FILE", type=Path, help="write medians for github-action-benchmark here")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    path = session.config.getoption("--action")
    measured = getattr(session.config, "_benchmarksession", None)
    if path is not None and measured is not None:
        from eblvm.bench.tools import action

        action.write(action.of_benchmarks(measured.benchmarks), path)
