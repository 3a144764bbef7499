"""Every launch compiles by the JIT's own path, at the sizes where it specialises an argument or splits the work."""

import pytest
import torch

pytest.importorskip("triton")

from eblvm.kernels.adam_unroll import triton as adam
from eblvm.kernels.adam_unroll import triton_lists as adam_lists
from eblvm.kernels.adam_unroll.reference import Rule
from eblvm.kernels.bernoulli_lower import triton as bernoulli_lower
from eblvm.kernels.elu_second_order import triton as elu
from eblvm.kernels.gibbs import triton as gibbs
from eblvm.kernels.gibbs import triton_wide as gibbs_wide
from eblvm.kernels.grbm import triton as grbm
from eblvm.kernels.grbm import triton_wide as grbm_wide
from eblvm.kernels.grbm_bilevel import triton as bilevel
from eblvm.kernels.grbm_bilevel.reference import Phi, Settings, Theta
from eblvm.kernels.grbm_dsm import triton as grbm_dsm
from eblvm.kernels.grbm_dsm import triton_wide as grbm_dsm_wide
from eblvm.kernels.philox import triton as philox
from eblvm.kernels.runtime import tiles, triton_report
from eblvm.kernels.sliced_hvp import triton as sliced_hvp
from eblvm.kernels.sliced_hvp import triton_wide as sliced_hvp_wide
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


@pytest.mark.parametrize(("K", "N"), [(1, 0), (0, 1), (5, 5)])
def test_numbers_of_steps(K, N) -> None:
    with compiled_only(80) as kernels:
        of_bilevel(25, K=K, N=N)
    assert kernels


@pytest.mark.parametrize("size", [1, 3])
def test_rows_of_one_unit(size) -> None:
    """The kernels after torch's products and the pointwise ones, where a batch and a width are 1."""
    B = D = H = size
    v, u, W, h = torch.zeros(B, D), torch.zeros(2, B, D), torch.zeros(D, H), torch.zeros(B, H)
    b, c, g, k = torch.zeros(D), torch.zeros(H), torch.zeros(B), torch.zeros(2, B)
    seed, scalar = torch.tensor(3), torch.zeros(())
    with compiled_only(80) as kernels:
        for latent in (None, h):
            grbm_wide.value(v, W, b, c, b, latent)
            grbm_wide.first(g, v, h if latent is None else v, v, W, b, c, b, latent, True, latent is not None)
        grbm_dsm_wide.grbm_dsm(v, v, W, b, c, b, 0.3)
        *_, mean, score, slices = sliced_hvp_wide.value(v, u, W, b, c, b)
        sliced_hvp_wide.first(g, k, mean, score, slices, v, u, W, b, c, b, True, True)
        gibbs_wide.gibbs(v, W, b, c, b, (), (), seed, 0, 1, 2, 0, 1)
        gibbs_wide.gibbs(v, W, b, c, b, [h], [v], None, 0, 1, 2, 0, 1)
        for noise, of_seed in ((h, None), (None, seed), (None, None)):
            bernoulli_lower.second(g, h, h, h, h, noise, of_seed, 0, 1, 0, 0.1)
        philox.philox(seed, 0, 1, B, D, 0, 2)
        philox.philox_list(seed, 0, 0, [(2, 5, B, D), (3, 6, B, H)], [v, h])
        adam.step(v, v, v, v, scalar, scalar, Rule())
        adam.reverse(v, v, v, v, v, v, scalar, scalar, Rule())
        adam_lists.steps_([v, h], [v, h], [v, h], [v, h], scalar, scalar, Rule(), 0.1, 1.0, [v, h], 0.9, scalar > 0)
        adam_lists.reverses([v, h], None, None, [v, h], [v, h], [v, h], scalar, scalar, Rule())
        adam_lists.restore_([v, h], [v, h], scalar > 0)
        adam_lists.all_finite([v, h])
    assert len({kernel.name for kernel in kernels}) == 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elu_loads_and_stores_vectors(dtype) -> None:
    x = torch.zeros(8, 16, 32, dtype=dtype)
    with compiled_only(80) as kernels:
        elu.value(x, 1.0), elu.first(x, x, 1.0), elu.second(x, x, x, 1.0)
    for kernel in kernels:
        code = kernel.asm["ptx"]
        assert triton_report.vector_loads(code) == 1.0
        assert triton_report.vector_loads(code.replace("st.global", "ld.global")) == 1.0


def test_elu_has_few_kernels_for_many_sizes() -> None:
    with compiled_only(80) as kernels:
        for size in (1, 2, 3, 16, 25, 48, 100, 560, 1000, 1024, 4096, 5000, 2**16):
            elu.second(*[torch.zeros(size)] * 3, 1.0)
    assert len(set(map(id, kernels))) == 3  # one element; a multiple of 16; any other number


def test_offsets_of_32_bits_are_enough() -> None:
    """Where a replica's tensor has 2^31 numbers torch's products are used, whose kernels count in 64 bits."""

    def fits(batch: int, D: int, H: int, M: int = 1) -> bool:
        v, W = torch.empty(batch, D, device="meta"), torch.empty(D, H, device="meta")
        return grbm.fits(v, W, M)

    assert fits(2**20, 1000, 400)
    assert not fits(2**22, 512, 400)  # v
    assert not fits(2**20, 16, 2**11)  # h
    assert not fits(2**20, 512, 400, M=4)  # u
    assert not fits(2**27, 2, 4)  # the parts of a split
