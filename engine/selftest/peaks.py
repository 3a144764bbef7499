"""Peak rates of devices, as their makers' data sheets state them, in TFLOP/s of dense products.

Where a sheet gives a rate "with sparsity" alone, half of it is here. Rates of 16 bits are those that add in fp32.
"""

import re
from typing import NamedTuple


class Peaks(NamedTuple):
    """In fp32 outside of tensor cores, in tf32, and in bf16 or fp16; None: the device does not have it."""

    fp32: float
    tf32: float | None
    half: float | None
    source: str


# By the name that torch gives a device, all of it. Two boards of one name share a row only if they share its rates.
PEAKS = {
    r"Tesla V100-SXM2-.*": Peaks(15.7, None, 125.0, "NVIDIA V100 data sheet"),
    r"Tesla T4": Peaks(8.1, None, 65.0, "NVIDIA T4 data sheet"),
    r"NVIDIA A100-.*": Peaks(19.5, 156.0, 312.0, "NVIDIA A100 data sheet"),
    r"NVIDIA A10": Peaks(31.2, 62.5, 125.0, "NVIDIA A10 data sheet"),
    r"NVIDIA A40": Peaks(37.4, 74.8, 149.7, "NVIDIA A40 data sheet"),
    r"NVIDIA L4": Peaks(30.3, 60.0, 121.0, "NVIDIA L4 data sheet"),
    r"NVIDIA L40S": Peaks(91.6, 183.0, 362.05, "NVIDIA L40S data sheet"),
    r"NVIDIA H100 PCIe": Peaks(51.0, 378.0, 756.0, "NVIDIA H100 data sheet"),
    r"NVIDIA H100 80GB HBM3": Peaks(67.0, 494.5, 989.5, "NVIDIA H100 data sheet"),
    r"NVIDIA H200": Peaks(67.0, 494.5, 989.5, "NVIDIA H200 data sheet"),
    r"NVIDIA GeForce RTX 3090": Peaks(35.6, 35.6, 71.0, "NVIDIA Ampere GA102 white paper"),
    r"NVIDIA GeForce RTX 4090": Peaks(82.6, 82.6, 165.2, "NVIDIA Ada white paper"),
}


def peak_of(device: str, precision: str) -> tuple[float, str] | None:
    """Return a device's peak in a precision of training, in TFLOP/s, and where it is stated; None if unknown."""
    peaks = next((peaks for pattern, peaks in PEAKS.items() if re.fullmatch(pattern, device)), None)
    if peaks is None:
        return None
    rate = {"fp32": peaks.fp32, "tf32": peaks.tf32}.get(precision, peaks.half)
    return None if rate is None else (rate, peaks.source)
