"""Streams of a fake GPU: what each of them does, in order, and whether a minibatch is read only after it is made."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor


class Stream:
    def __init__(self, log: list[tuple[Any, ...]], name: str):
        self.log, self.name = log, name

    def wait_stream(self, other: "Stream") -> None:
        self.log.append((self.name, "waits for the work of", other.name))

    def record_event(self) -> "Event":
        event = Event(self)
        self.log.append((self.name, "records", event))
        return event

    def wait_event(self, event: "Event") -> None:
        self.log.append((self.name, "waits for", event))


class Event:
    def __init__(self, stream: Stream):
        self.stream = stream


class Streams:
    """Each thread's current stream, the training's one at first, and a log of (stream, action, object)."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.training = Stream(self.log, "training")
        self._own = threading.local()
        self._made = 0

    def new(self, *_: Any) -> Stream:
        self._made += 1
        return Stream(self.log, f"side {self._made}")

    def current(self, *_: Any) -> Stream:
        return getattr(self._own, "current", self.training)

    @contextmanager
    def entered(self, stream: Stream | None) -> Iterator[None]:
        before = self.current()
        self._own.current = stream or before
        try:
            yield
        finally:
            self._own.current = before

    def copied(self, out: Tensor, stream: Stream) -> None:
        self.log.append((stream.name, "copies to", out))

    @contextmanager
    def installed(self) -> Iterator[None]:
        def recorded(x: Tensor, stream: Stream) -> None:
            self.log.append((stream.name, "uses", x))

        with ExitStack() as contexts:
            for name, replacement in (("Stream", self.new), ("current_stream", self.current), ("stream", self.entered)):
                contexts.enter_context(patch.object(torch.cuda, name, replacement))
            contexts.enter_context(patch.object(Tensor, "record_stream", recorded))
            yield

    def faults(self, given: list[Tensor]) -> list[str]:
        """Return what is wrong with the order; `given` are the minibatches that the steps read."""
        of_side = [(action, x) for who, action, x in self.log if who.startswith("side")]
        of_training = [(action, x) for who, action, x in self.log if who == "training"]
        events = [x for action, x in of_side if action == "records"]
        waits = [x for action, x in of_training if action == "waits for"]
        used = [x for action, x in of_training if action == "uses"]
        side, training = ([action for action, _ in actions] for actions in (of_side, of_training))
        found = []
        if self._made != 1 or of_side[:1] != [("waits for the work of", "training")]:
            found.append("expected one side stream, which first waits for the seed that the training stream made")
        if side[1:] != ["copies to", "records"] * len(events) or not events:
            found.append(f"the side stream {side}, expected copies with an event after each")
        if training != ["waits for", "uses"] * len(waits) or waits != events[: len(waits)]:
            found.append(f"the training stream {training}, expected waits, and uses after them")
        if not given or any(all(x is not y for y in used) for x in given):
            found.append("the memory of a minibatch is not kept until the training stream has read it")
        return found
