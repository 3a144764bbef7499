"""The recorded launches and bytes of the Triton kernels, against the unfused path."""

from eblvm.bench.measurements import traffic
from eblvm.bench.tools import records

# Where half is not reached. With h given there is no B x H array to save: W, v, h and the results are more than half.
BEYOND = {"E(v, h)": 0.72, "at h": 0.68}


def test_recorded_kernels_take_half_the_traffic_and_a_third_of_the_launches() -> None:
    rows = records.read(records.RECORDS / "traffic.jsonl", traffic.SCHEMA)["rows"]
    assert len(rows) == 11
    for row in rows:
        assert 3 * row["launches"] <= row["unfused_launches"], row
        bar = max((bar for part, bar in BEYOND.items() if part in row["op"]), default=0.5)
        assert row["traffic_ratio"] <= bar, row
