"""The kernels with a product inside, on a GRBM: rows, columns, the bi-level step, Gibbs sweeps."""

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from eblvm.kernels import gibbs, grbm, grbm_bilevel, grbm_dsm, sliced_hvp
from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.gibbs import triton as gibbs_triton
from eblvm.kernels.grbm import triton as grbm_triton
from eblvm.kernels.grbm_bilevel import triton as bilevel_triton
from eblvm.kernels.grbm_bilevel import triton_rate
from eblvm.kernels.grbm_bilevel.reference import Settings
from eblvm.kernels.grbm_dsm import triton as dsm_triton
from eblvm.kernels.sliced_hvp import triton as sliced_triton
from tests.emulator.kernels.case import CAPABILITIES, FP64, IEEE, OF_PRODUCTS, Case, Numbers
from tests.kernels import gibbs_cases, grbm_cases
from tests.kernels.interpreted import check_grbm_bilevel

BATCHES, D, H = (1, 25, 33, 100), 57, 41
SIZES = [*((batch, D, H) for batch in BATCHES), (33, 131, 73)]
DIRECTIONS = 3


def cases() -> Iterator[Case]:
    for numbers in OF_PRODUCTS:
        for (part, size), capability in itertools.product(itertools.product(PARTS, SIZES), CAPABILITIES):
            yield grbm_case(part, numbers, size, capability)
        for part, capability in itertools.product(PARTS, CAPABILITIES):
            yield grbm_case(part, numbers, (35, D, H), capability, replicas=(2,), split=3)
        for part in PARTS:
            yield grbm_case(part, numbers, (33, D, H), 80, replicas=(2,), fits=False)
    for part, capability in itertools.product(PARTS, (75, 100)):
        yield grbm_case(part, IEEE, (33, D, H), capability)
    yield from bilevels()
    yield from chains()


def free_energy(op: Any, v, W, b, c, log_sigma, h, g, r, k) -> Any:
    energy, score, kept = op.value(v, W, b, c, log_sigma, None)
    return energy, score, op.first(g, r, kept, v, W, b, c, log_sigma, None, True, False)


def energy(op: Any, v, W, b, c, log_sigma, h, g, r, k) -> Any:
    energy, score = op.value(v, W, b, c, log_sigma, h)
    return energy, score, op.first(g, r, score, v, W, b, c, log_sigma, h, True, True)


def denoising(op: Any, v, W, b, c, log_sigma, h, g, r, k) -> Any:
    return op.grbm_dsm(v, r, W, b, c, log_sigma, 0.3)


def sliced(op: Any, v, W, b, c, log_sigma, u, g, r, k) -> Any:
    half_square, curvature, *kept = op.value(v, u, W, b, c, log_sigma)
    gradients = op.first(g, k, *kept, v, u, W, b, c, log_sigma, False, False)
    return half_square, curvature, gradients


PARTS: dict[str, tuple[Any, Any, Any]] = {
    "grbm free energy": (free_energy, grbm_triton, grbm.reference),
    "grbm energy": (energy, grbm_triton, grbm.reference),
    "grbm_dsm": (denoising, dsm_triton, grbm_dsm.reference),
    "sliced_hvp": (sliced, sliced_triton, sliced_hvp.reference),
}


def grbm_case(
    part: str,
    numbers: Numbers,
    size: tuple[int, int, int],
    capability: int,
    *,
    replicas: tuple[int, ...] = (),
    split: int = 0,
    fits: bool = True,
) -> Case:
    run, op, reference = PARTS[part]
    M = DIRECTIONS if part == "sliced_hvp" else 0

    def given() -> list[Tensor]:
        return grbm_cases.inputs(size, numbers.dtype, replicas, M=M) + cotangents(size, numbers.dtype, replicas)

    how = [*(f"{n} replicas" for n in replicas), *([f"split {split}"] if split else []), *([] if fits else ["wide"])]
    name = " ".join([numbers.name, "x".join(map(str, size)), *how])
    launch, expected = (lambda tensors, op=op: run(op, *tensors) for op in (op, reference))
    return Case(part, name, capability, numbers, given, launch, expected, split, fits)


def cotangents(size: tuple[int, int, int], dtype: torch.dtype, replicas: tuple[int, ...]) -> list[Tensor]:
    """g [B] of a number for each sample, r [B, D] of its score, k [M, B] of its curvatures."""
    B, D, _ = size
    generator = torch.Generator().manual_seed(B)
    shapes = ((B,), (B, D), (DIRECTIONS, B))
    return [torch.randn(*replicas, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def bilevels() -> Iterator[Case]:
    of_size: dict[str, tuple[Any, int, int]] = {f"{B}x37x21": ((B, 37, 21), 1, 1) for B in BATCHES}
    of_size["20x131x73"] = (20, 131, 73), 2, 2
    for numbers, capability in itertools.product([n for n in OF_PRODUCTS if n.name != "bf16"], CAPABILITIES):
        for mode, (label, (size, K, N)) in itertools.product(check_grbm_bilevel.MODES, of_size.items()):
            # Every mode at one size, every size in the first and the last mode.
            if size[0] == 33 or mode in (check_grbm_bilevel.MODES[0], check_grbm_bilevel.MODES[-1]):
                names = " ".join(name for name, on in mode.items() if on)
                yield bilevel_case(numbers, capability, f"{label} {names}".strip(), size, K, N, mode)
        of_replicas = {"exact": True, "sgd": True, "shared": True, "auto_rate": True}
        yield bilevel_case(
            numbers, capability, "5x37x21 2 replicas, automatic rate", (5, 37, 21), 1, 2, of_replicas, (2,)
        )


def bilevel_case(
    numbers: Numbers,
    capability: int,
    label: str,
    size: tuple[int, int, int],
    K: int,
    N: int,
    mode: dict[str, bool],
    replicas: tuple[int, ...] = (),
) -> Case:
    own = {name: on for name, on in mode.items() if name in ("exact", "shared")}

    def given() -> Any:
        inputs = check_grbm_bilevel.inputs(size, K + N + 1, replicas=replicas, dtype=numbers.dtype, **own)
        return well_conditioned(*inputs)

    settings = {name: on for name, on in mode.items() if name != "shared"}
    step = Settings(K=K, N=N, sigma=check_grbm_bilevel.SIGMA, tau=check_grbm_bilevel.TAU, rule=Rule(), **settings)

    launch, expected = (
        lambda tensors, op=op: op.grbm_bilevel(*tensors, step) for op in (bilevel_triton, grbm_bilevel.reference)
    )
    return Case("grbm_bilevel", f"{numbers.name} {label}", capability, numbers, given, launch, expected)


def well_conditioned(*given: Any) -> Any:
    """Second moments away from zero: Adam divides by their roots, and of many some are small."""
    v, perturb, latent, theta, phi, *rates = given
    moved = phi._replace(v_weight=phi.v_weight + 0.1, v_bias=phi.v_bias + 0.1)
    return v, perturb, latent, theta, moved, *rates


def chains() -> Iterator[Case]:
    """Yield sweeps: a decision that rounding turns makes another chain, so products keep all bits but for faults."""
    for numbers, kind, capability in itertools.product((IEEE, FP64), ("given", "drawn"), CAPABILITIES):
        for size, fits in [*(((batch, D, H), True) for batch in BATCHES), ((33, D, H), False)]:
            yield gibbs_case(numbers, kind, size, capability, fits)


def gibbs_case(numbers: Numbers, kind: str, size: tuple[int, int, int], capability: int, fits: bool) -> Case:
    stream = gibbs_cases.stream()

    def given() -> Any:
        noise = stream if kind == "drawn" else gibbs_cases.drawn(size, numbers.dtype, stream)
        return gibbs_cases.raw(gibbs_cases.inputs(size, numbers.dtype), noise)

    launch, expected = (lambda arguments, op=op: op.gibbs(*arguments) for op in (gibbs_triton, gibbs.reference))
    name = f"{numbers.name} {'x'.join(map(str, size))} {kind}{'' if fits else ' wide'}"
    return Case("gibbs", name, capability, numbers, given, launch, expected, fits=fits)


def rates() -> Iterator[Case]:
    """Yield the automatic step size of the unroll."""
    for numbers, B in itertools.product((IEEE, FP64), (1, 5, 63)):

        def given(numbers: Numbers = numbers, B: int = B) -> Tensor:
            return torch.randn(2, B, 5, generator=torch.Generator().manual_seed(B), dtype=numbers.dtype)

        def launch(V: Tensor) -> Tensor:
            return triton_rate.step_size(bilevel_triton.gram_of(V, torch.zeros_like(V), 1.0))

        name, expected = f"{numbers.name} {B} samples", grbm_bilevel.reference.step_size
        yield Case("grbm_bilevel rate", name, 80, numbers, given, launch, expected)
