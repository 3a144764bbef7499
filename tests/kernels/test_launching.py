"""Every launch compiles by the JIT's own path, at the sizes where it specialises an argument or splits the work."""

import pytest
import torch

pytest.importorskip("triton")

from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.gibbs import triton as gibbs
from eblvm.kernels.grbm import triton as grbm
from eblvm.kernels.grbm_bilevel import triton as bilevel
from eblvm.kernels.grbm_bilevel.reference import Phi, Settings, Theta
from eblvm.kernels.grbm_dsm import triton as grbm_dsm
from eblvm.kernels.runtime import tiles
from eblvm.kernels.sliced_hvp import triton as sliced_hvp
from tests.kernels.launching import compiled_only

D, H = 24, 20


def points(batch: int, *lead: int) -> torch.Tensor:
    return torch.zeros(*lead, batch, D)


def parameters() -> tuple[torch.Tensor, ...]:
    return torch.zeros(D, H), torch.zeros(D), torch.zeros(H), torch.zeros(D)


def of_rows(batch: int) -> None:
    v, (W, b, c, log_sigma) = points(batch), parameters()
    grbm.value(v, W, b, c, log_sigma, None)
    grbm.value(v, W, b, c, log_sigma, torch.zeros(batch, H))
    sliced_hvp.value(v, points(batch, 2), W, b, c, log_sigma)


def of_columns(batch: int) -> None:
    v, theta, g = points(batch), parameters(), torch.zeros(batch)
    grbm.first(g, v, v, v, *theta, None, True, False)
    grbm.first(g, v, v, v, *theta, torch.zeros(batch, H), True, True)
    sliced_hvp.first(g, torch.zeros(2, batch), g, v, g, v, points(batch, 2), *theta, False, False)


def of_both(batch: int) -> None:
    grbm_dsm.grbm_dsm(points(batch), points(batch), *parameters(), 0.3)


def of_gibbs(batch: int) -> None:
    gibbs.gibbs(points(batch), *parameters(), (), (), torch.tensor(3), 0, 1, 2, 0, 2)


def of_bilevel(batch: int, sgd: bool = False, K: int = 1, N: int = 1) -> None:
    v, (W, b, c, log_sigma) = points(batch), parameters()
    matrix, vector, scalar = torch.zeros(H, D), torch.zeros(H), torch.zeros(())
    phi = Phi(matrix, vector, matrix, vector, matrix, vector, scalar)
    settings = Settings(K=K, N=N, sigma=0.3, tau=0.1, exact=sgd, sgd=sgd, auto_rate=sgd, rule=Rule())
    noise = [torch.zeros(batch, H)] * (1 if sgd else K + N + 1)
    bilevel.grbm_bilevel(v, [v], noise, Theta(W, b, c, log_sigma), phi, scalar, scalar, settings)


OPS = {"rows": of_rows, "columns": of_columns, "dsm": of_both, "gibbs": of_gibbs, "bilevel": of_bilevel}


@pytest.mark.parametrize("batch", [1, 16, 25])
@pytest.mark.parametrize("op", OPS)
def test_batches_that_the_jit_specialises(op, batch) -> None:
    with compiled_only(80) as kernels:
        OPS[op](batch)
    assert kernels


@pytest.mark.parametrize("batch", [1, 25])
def test_steps_in_the_dual(batch) -> None:
    with compiled_only(80) as kernels:
        of_bilevel(batch, sgd=True)
    assert {kernel.name for kernel in kernels} >= {"lower_kernel", "residual_kernel", "reverse_kernel"}


@pytest.mark.parametrize("op", ["rows", "columns", "dsm"])
def test_parts_of_a_split(op, monkeypatch) -> None:
    ranked = tiles.ranked
    monkeypatch.setattr(tiles, "ranked", lambda *problem: (ranked(*problem)[0]._replace(split=2),))
    with compiled_only(80) as kernels:
        OPS[op](25)
    assert all("atom.global" in kernel.asm["ptx"] for kernel in kernels)
