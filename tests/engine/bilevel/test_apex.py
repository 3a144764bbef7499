"""apex's Adam against the engine's, where it is installed; one sentence where it is not."""

import pytest
import torch

from eblvm.engine.bilevel import apex
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import recipe
from eblvm.kernels.adam_unroll import Rule, adam_unroll_


@pytest.mark.skipif(not (apex.available() and torch.cuda.is_available()), reason="needs NVIDIA apex and a GPU")
def test_apex_adam_is_adam() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    sizes = {"a": (257,), "b": (63, 5), "c": ()}
    trees = [{k: torch.rand(s, generator=generator, device="cuda") for k, s in sizes.items()} for _ in range(4)]
    theta, gradient, m, v = trees
    expected = {k: tuple(x[k].clone() for x in (theta, m, v)) for k in theta}
    t, lr = torch.tensor(3.0, device="cuda"), torch.tensor(1e-3, device="cuda")
    for k, (p, m_k, v_k) in expected.items():
        adam_unroll_(p, gradient[k], m_k, v_k, t, lr, Rule())
    apex.apex_adam_(theta, gradient, m, v, t, lr, Rule())
    for k, values in expected.items():
        for found, value in zip((theta[k], m[k], v[k]), values, strict=True):
            torch.testing.assert_close(found, value)


@pytest.mark.skipif(apex.available(), reason="apex is installed")
def test_a_missing_apex_is_said() -> None:
    with pytest.raises(UserError, match="not installed here; use 'adam'"):
        recipe("digits").replaced(optimizer="apex").validate()
