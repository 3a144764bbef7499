"""The parts of a Fisher lower step: their slopes are derivatives of the head. The step is tested with its method."""

import pytest
import torch

from eblvm.kernels import fisher_step
from eblvm.kernels.fisher_step import reference
from tests.kernels.fisher_step_cases import SIZES, inputs, results


def test_slopes_are_derivatives() -> None:
    y = torch.linspace(-4, 4, 101, dtype=torch.float64).requires_grad_()
    energy = torch.nn.functional.elu(y).square()
    (slope,) = torch.autograd.grad(energy.sum(), y, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), y)
    torch.testing.assert_close(reference.slope(y), slope, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(reference.curved(torch.ones_like(y), y), curvature, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_outputs_bar_is_the_cotangent_of_samples(size) -> None:
    """Check the step without its head: E = slope . h, so that r does not depend on h."""
    x = inputs(size)
    out = x["out"].requires_grad_()
    S, B, H = x["eps"].shape
    r = x["slope"].view(S, B, H) - x["eps"] * torch.exp(-out[:, H:])
    loss = (0.5 * r.square().sum(-1) * x["weight"]).mean()
    (expected,) = torch.autograd.grad(loss, out)
    out = out.detach()
    _, r_bar = reference.residual(x["slope"], out, x["eps"], x["weight"])
    found = reference.outputs_bar(torch.zeros_like(x["slope"]), r_bar, out, x["eps"], None)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_scale_and_type() -> None:
    x = inputs(SIZES[1], torch.float32)
    plain, scaled = results(reference, x, None), results(reference, x, torch.tensor(4.0))
    assert torch.equal(4 * plain[-1], scaled[-1])
    assert results(reference, x, None, x["out"].bfloat16())[-1].dtype == torch.bfloat16


def test_rows_say_which_backend_serves() -> None:
    assert [row.name for row in fisher_step.backends() if row.serves] == ["reference", "reference"]
