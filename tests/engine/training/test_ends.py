"""Every end of a run: its input was opened once and is closed, the handlers of signals are as before."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eblvm.engine import recipes
from eblvm.engine.config import Config
from eblvm.engine.errors import DivergedError
from eblvm.engine.machine import ENDINGS
from eblvm.engine.optim.optimisation import Optimisation
from eblvm.engine.training import guard, start
from eblvm.engine.training.loop import train

AT = 3  # the step at which a run is broken or interrupted


def small(**changes: Any) -> Config:
    settings = {"batch": 4, "steps": 6, "log_every": 1, "validations": 0}
    return recipes.recipe("checkerboard", method="dsm").replaced(**settings | changes)


class Opened:
    """Inputs that were opened, and how often each was closed."""

    def __init__(self) -> None:
        self.closed: list[int] = []

    def counting(self, open_input: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any) -> Any:
            found, number = open_input(*arguments), len(self.closed)
            self.closed.append(0)
            close = found.close

            def counted() -> None:
                self.closed[number] += 1
                close()

            found.close = counted
            return found

        return opened


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    found = Opened()
    monkeypatch.setattr(start, "open_input", found.counting(start.open_input))
    return found


@pytest.fixture
def handlers() -> Iterator[dict[int, Any]]:
    """Handlers of the caller's own, which no run may leave replaced."""
    before = {number: signal.getsignal(number) for number in ENDINGS}
    for number in ENDINGS:
        signal.signal(number, lambda *_: None)
    yield {number: signal.getsignal(number) for number in ENDINGS}
    for number, handler in before.items():
        signal.signal(number, handler)


def present(numbers: Any) -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in numbers}


def at_step(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Do something before step AT of a run."""
    rates = Optimisation.rates

    def acting(optimisation: Optimisation, step: int, *rest: Any) -> Any:
        if step == AT:
            action()
        return rates(optimisation, step, *rest)

    monkeypatch.setattr(Optimisation, "rates", acting)


def terminated() -> None:
    assert present(ENDINGS)[signal.SIGTERM] is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)


def diverged() -> None:
    raise DivergedError("stopped at step 3")


def test_the_input_is_opened_once_and_closed(tmp_path: Path, opened: Opened, handlers: dict[int, Any]) -> None:
    """Of a new run, of one that is continued, and of one that is complete already."""
    assert train(small(), tmp_path / "run")
    assert opened.closed == [1]
    assert train(small(steps=8), tmp_path / "run", extend=True)
    assert train(small(steps=8), tmp_path / "run", extend=True)
    assert opened.closed == [1, 1, 1]
    assert present(handlers) == handlers


def test_sigterm_leaves_the_input_closed_and_the_handlers_as_before(
    tmp_path: Path, opened: Opened, handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    at_step(monkeypatch, terminated)
    assert not train(small(), tmp_path / "run", said.append)
    assert "interrupted: saved at step" in said[-1]
    assert opened.closed == [1]
    assert present(handlers) == handlers


def test_an_error_leaves_the_input_closed_and_the_handlers_as_before(
    tmp_path: Path, opened: Opened, handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(monkeypatch, diverged)
    with pytest.raises(DivergedError):
        train(small(), tmp_path / "run")
    assert opened.closed == [1]
    assert present(handlers) == handlers


def test_an_error_before_the_first_step_closes_the_input(
    tmp_path: Path, opened: Opened, handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(small(), tmp_path / "run")

    def broken(*_: Any) -> dict[str, list[float]]:
        return {"theta": [float("nan")]}

    monkeypatch.setattr(guard, "sizes", broken)
    with pytest.raises(DivergedError, match="theta is nan"):
        train(small(steps=8), tmp_path / "run", extend=True)
    assert opened.closed == [1, 1]
    assert present(handlers) == handlers
