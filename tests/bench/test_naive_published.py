"""Engine against naive procedure on the published networks, in fp64 with fresh noise: MDSM, and BiMDSM for N = 0, 2."""

import pytest

from eblvm.bench.measurements import deep
from eblvm.bench.tools.agreement import TOLERANCE


@pytest.mark.parametrize(
    "changes", [{"method": "mdsm"}, {"N": 0, "K": 2}, {"N": 2, "K": 2}], ids=["mdsm", "N=0", "N=2"]
)
def test_engine_and_naive_gradients_agree(changes: dict) -> None:
    config = deep.SMALL_PUBLISHED.replaced(**changes)
    assert deep.difference(config, (3, 16, 16)) < TOLERANCE
