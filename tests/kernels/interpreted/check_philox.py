"""The Triton noise has the bits of the reference."""

import pytest
import torch

from eblvm.kernels import philox
from eblvm.kernels.philox import Purpose, reference, triton
from eblvm.kernels.philox.reference import Kind

PURPOSE = philox.purpose(Purpose.PERTURB, 3)
SIZES = ((1, 1), (63, 3), (5, 257), (3, 100), (0, 4), (4, 0))


@pytest.mark.parametrize("count_width", SIZES, ids=str)
@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_bits_equal_reference(kind, count_width, nan_filled) -> None:
    seeds = torch.tensor([[5, 2**62 + 17, 0], [2**63 - 1, 2**32, 1]])[:, ::2]
    arguments = (seeds, 2**32 - 2, PURPOSE, *count_width, 11, int(kind))
    drawn, specified = triton.philox(*arguments), reference.philox(*arguments)
    assert drawn.shape == specified.shape
    assert drawn.dtype == specified.dtype
    assert torch.equal(drawn, specified)


@pytest.mark.parametrize("kind", [Kind.NORMAL, Kind.LOGISTIC, Kind.GUMBEL], ids=lambda kind: kind.name)
def test_bits_equal_reference_over_many_words(kind) -> None:
    arguments = (torch.tensor(99), 1, 2, 1, 62_501, 0, int(kind))
    assert torch.equal(triton.philox(*arguments), reference.philox(*arguments))


def test_vmap_over_seeds() -> None:
    seeds = torch.tensor([4, 5, 2**50])
    draw = torch.vmap(lambda seed: philox._Triton.apply(seed, 1, PURPOSE, 3, 7, 2, int(Kind.NORMAL)))
    assert torch.equal(draw(seeds), reference.philox(seeds, 1, PURPOSE, 3, 7, 2, int(Kind.NORMAL)))


def test_a_list_has_the_bits_of_its_draws(nan_filled) -> None:
    seeds = torch.tensor([5, 2**62 + 17])
    draws = [(int(Kind.NORMAL), PURPOSE, 7, 257), (int(Kind.LOGISTIC), PURPOSE + 1, 7, 6), (int(Kind.NORMAL), 5, 3, 0)]
    draws += [(int(Kind.UNIFORM), PURPOSE, 40, 33), (int(Kind.NORMAL), PURPOSE + 2, 1, 1)]
    out = [torch.empty(2, count, width) for _, _, count, width in draws]
    triton.philox_list(seeds, 2**32 - 2, 11, draws, out)
    for (kind, purpose, count, width), drawn in zip(draws, out, strict=True):
        assert torch.equal(drawn, reference.philox(seeds, 2**32 - 2, purpose, count, width, 11, kind))
