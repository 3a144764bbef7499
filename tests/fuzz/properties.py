"""The length of the fuzz tests: a small fixed set by default; EBLVM_FUZZ sets the number of examples per property.

A run with EBLVM_FUZZ is seeded by EBLVM_FUZZ_SEED or the clock and prints the seed; hypothesis prints the blob that
reproduces a failure.
"""

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, seed, settings

from eblvm.engine.errors import UserError

BOUNDED = 60
EXAMPLES = int(os.environ.get("EBLVM_FUZZ", BOUNDED))
SEED = int(os.environ.get("EBLVM_FUZZ_SEED", time.time() if "EBLVM_FUZZ" in os.environ else 20))

TALLY: Counter[str] = Counter()  # what was tried, for the report


def bounded(test: Any) -> Any:
    """Make a property test with EXAMPLES examples, the same ones every time by default."""
    how = settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    return seed(SEED)(how(test))


def read_or_refused(read: Callable[[], Any], what: str = "files") -> Any:
    """Return the result of `read`, or the one line of its error. Every other exception is a failure of the test."""
    TALLY[what] += 1
    try:
        return read()
    except UserError as error:
        sentence = str(error)
    assert "\n" not in sentence
    assert 10 < len(sentence) < 1000
    sentence.encode()
    return sentence
