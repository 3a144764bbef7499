"""The recorded launches and bytes of the Triton kernels, against the unfused path."""

from eblvm.bench.measurements import traffic
from eblvm.bench.tools import records

# Where half is not reached. With h given there is no B x H array to save: W, v, h and the results are more than half.
BEYOND = {"at h": 0.68}
# At B=100 there are 7 blocks of samples for 108 multiprocessors, so their work is split: 56 programs, whose parts are
# written, and read again, in the level-2 cache, after a launch that zeroes their tickets.
SPLIT = {
    "grbm F(v), score": 1.4,
    "grbm E(v, h), score": 2.45,
    "grbm first order, v too": 0.96,
    "grbm_dsm": 1.55,
    "sliced_hvp, M=1": 0.97,
    "sliced_hvp first order, M=1": 1.01,
}


def test_recorded_kernels_take_half_the_traffic_and_a_third_of_the_launches_unless_they_are_split() -> None:
    rows = records.read(records.RECORDS / "traffic.jsonl", traffic.SCHEMA)["rows"]
    assert len(rows) == 11
    for row in rows:
        if row["op"] in SPLIT:
            assert row["launches"] < row["unfused_launches"], row
            assert row["traffic_ratio"] <= SPLIT[row["op"]], row
            continue
        assert 3 * row["launches"] <= row["unfused_launches"], row
        bar = max((bar for part, bar in BEYOND.items() if part in row["op"]), default=0.5)
        assert row["traffic_ratio"] <= bar, row
