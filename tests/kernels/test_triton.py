"""Every Triton kernel: by the interpreter against its reference, and compiled as at a launch for every architecture."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

triton_report = pytest.importorskip("eblvm.kernels.runtime.triton_report")
pytest.importorskip("triton")

CHECKS = sorted((Path(__file__).parent / "interpreted").glob("check_*.py"))


def test_every_op_has_its_checks() -> None:
    assert [f"check_{op}" for op in sorted(triton_report.OPS)] == [check.stem for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda path: path.stem)
def test_interpreted(check: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(check)]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


# A kernel with a product inside takes seconds to compile: float32 on the newest architecture here, where registers are
# scarcest, all types and architectures by `make kernels`.
EVERY = os.environ.get("EBLVM_ALL_KERNELS") == "1"
COMPILED = [
    (variant, capability)
    for variant in triton_report.variants()
    for capability in variant.capabilities
    if EVERY or not variant.fused or (capability == 100 and "first" not in variant.name)
]


@pytest.mark.parametrize(("variant", "capability"), COMPILED, ids=lambda value: getattr(value, "name", value))
def test_compiled(variant, capability) -> None:
    row = triton_report.compiled(variant, capability)
    assert row.spill_bytes == 0
    assert row.shared_bytes <= triton_report.LIMITS[capability].shared_kib_per_block * 1024
    assert 0 < row.registers <= 255
    assert row.occupancy > 0
    # In vectors, but for a row's own numbers, one per thread. The checkerboard's rows of 2 and 4 numbers are none.
    if variant.constants.get("D", 16) % 16 == 0:
        assert (row.vector_loads > 0.75) == (reason_for_scalar_loads(variant) is None)


ONE_ELEMENT = "a list's sizes have no common divisor: a thread has one element, neighbours read neighbours"
TWO_HALVES = "a thread has two elements of a row, and loads their 4 bytes at once"
SHARED = "neighbours share a number, a bias or a weight, which comes from the cache"
SCALAR_LOADS = {
    **{f"adam_unroll {name}": ONE_ELEMENT for name in ("steps", "reverses", "squares", "finite", "restore", "norm")},
    **{f"grbm {name}": TWO_HALVES for name in ("latent free", "latent given", "score free", "score given")},
    **{f"sliced_hvp {name}": TWO_HALVES for name in ("score square", "curvature")},
    "bernoulli_lower": TWO_HALVES,
}
SHARING = (
    "elu_of_sum value with bias fp32",
    "elu_of_sum value with bias bf16",
    "fisher_step residual",
    "fisher_step sample bf16",
)


def reason_for_scalar_loads(variant) -> str | None:
    if variant.name.startswith(SHARING) and not variant.name.endswith("fp64"):
        return SHARED
    for name, reason in SCALAR_LOADS.items():
        element = " bf16" if reason is TWO_HALVES else " fp32"  # a double is a vector of 8 bytes
        if element in variant.name and variant.name.startswith(f"{name} "):
            return reason
    return None


def test_occupancy_of_known_cases() -> None:
    # NVIDIA's occupancy calculator: 32 registers fill the multiprocessor, 255 leave 8 of 64 warps.
    assert triton_report.occupancy(80, 32, 0, 4) == 1.0
    assert triton_report.occupancy(80, 255, 0, 4) == 8 / 64
    assert triton_report.occupancy(86, 40, 0, 4) == 1.0
    assert triton_report.occupancy(80, 32, 100_000, 4) == 4 / 64


def test_table_has_a_line_for_every_row() -> None:
    rows = [triton_report.compiled(variant, 80) for variant in triton_report.variants()[:2]]
    assert len(triton_report.table(rows).splitlines()) == 3
