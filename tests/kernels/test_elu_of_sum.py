"""ELU of a sum: the op against torch's derivatives of the definition, in the chain of two residual blocks."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from eblvm.kernels import elu_of_sum as package
from eblvm.kernels.elu_of_sum import elu_of_sum, reference
from tests.kernels.elu_of_sum_cases import SIZES, TOLERANCE, assert_close, by, chain, derivatives, expected, inputs

GIVEN = [(True, True), (True, False), (False, True), (False, False)]


def chosen(tensors: list[Tensor], residual: bool, bias: bool) -> list[Tensor | None]:
    x, r, b, g = tensors
    return [x, r if residual else None, b if bias else None, g]


@pytest.mark.parametrize(("residual", "bias"), GIVEN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_value_and_derivatives(size, dtype, residual, bias) -> None:
    given = chosen(inputs(size, dtype), residual, bias)
    assert_close(derivatives(by(reference), *given), expected(*given), TOLERANCE[dtype])


@pytest.mark.parametrize(("residual", "bias"), GIVEN)
def test_gradcheck(residual, bias) -> None:
    given = [t for t in chosen(inputs((2, 3, 2, 2)), residual, bias)[:3] if t is not None]

    def f(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        rest = iter(tensors[1:])
        return elu_of_sum(tensors[0], next(rest) if residual else None, next(rest) if bias else None)

    leaves = [t.requires_grad_() for t in given]
    assert gradcheck(f, leaves)
    assert gradgradcheck(f, leaves)


def test_third_derivative() -> None:
    x, r, b, _ = (t.requires_grad_() for t in inputs((2, 3, 2, 2)))

    def third(op) -> Tensor:
        g = chain(op, x, r, b).sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(g.sin().sum(), x, create_graph=True)
        return g

    torch.testing.assert_close(third(elu_of_sum), third(reference.value), rtol=1e-10, atol=1e-10)


def test_torch_func_and_vmap() -> None:
    x, r, b, g = inputs((2, 3, 5, 4))

    def score(op, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: (chain(op, y, r, b) * g).sum())(x)

    def loss(op, x: Tensor) -> Tensor:
        return torch.func.grad(lambda y: score(op, y).square().sum())(x)

    for f in (score, loss):
        torch.testing.assert_close(f(elu_of_sum, x), f(reference.value, x), rtol=1e-12, atol=1e-12)
    many = torch.stack([x, 2 * x])
    got = torch.vmap(lambda y: loss(elu_of_sum, y))(many)
    torch.testing.assert_close(got, torch.stack([loss(reference.value, y) for y in many]), rtol=1e-12, atol=1e-12)


def test_a_batch_of_directions() -> None:
    """A vmapped backward pass of plain autograd, as for sliced losses of several directions."""
    x, r, b, _ = inputs((2, 3, 5, 4))
    directions = torch.randn(4, *x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    found = []
    for op in (elu_of_sum, reference.value):
        at = x.detach().requires_grad_()
        (score,) = torch.autograd.grad(chain(op, at, r, b).sum(), at, create_graph=True)
        along = torch.vmap(lambda u, s=score, at=at: torch.autograd.grad(s, at, u, create_graph=True)[0])(directions)
        found.append((along.detach(), *torch.autograd.grad(along.square().sum(), at)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-11, atol=1e-11)


def test_no_sum_is_left_to_autograd() -> None:
    """Count additions of whole images in a score and its backward: torch needs nine, the op its own two."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Additions(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            tensors = [a for a in args if isinstance(a, Tensor) and a.dim() == 4]
            self.count += func._schema.name == "aten::add" and len(tensors) == 2
            return func(*args, **(kwargs or {}))

    class Fused:
        """A backend whose sums cannot be seen."""

        @staticmethod
        def value(*given):
            with torch.utils._python_dispatch._disable_current_modes():
                return reference.value(*given)

        @staticmethod
        def first(*given):
            with torch.utils._python_dispatch._disable_current_modes():
                return reference.first(*given)

        @staticmethod
        def second(*given):
            with torch.utils._python_dispatch._disable_current_modes():
                return reference.second(*given)

    def additions(op) -> int:
        given = [t.requires_grad_() for t in inputs((2, 3, 5, 4))]
        x, r, _, g = given
        with Additions() as seen:
            s, y = op(x, r, None)
            t, z = op(2 * y, s, None)
            (score,) = torch.autograd.grad((t, z), x, (g, g), create_graph=True)
            torch.autograd.grad((score, z), (x, r), (score.detach(), g.detach()))
        return seen.count

    assert additions(reference.value) > 6
    assert additions(by(Fused)) == 0


def test_saves_its_sum_alone() -> None:
    x, r, b, _ = (t.requires_grad_() for t in inputs((2, 3, 5, 4)))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.nbytes), t)[1], lambda t: t):
        elu_of_sum(x, r, b)
    assert sum(saved) == x.nbytes


def test_nothing_is_tracked_without_grad() -> None:
    x, r, b, _ = inputs((2, 3, 5, 4))
    with torch.no_grad():
        s, y = elu_of_sum(x, r.requires_grad_(), b)
    assert not s.requires_grad
    torch.testing.assert_close((s, y), reference.value(x, r, b), rtol=0, atol=0)


def test_errors_say_what_was_got() -> None:
    x = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"x of dtype torch\.int64; expected a floating dtype"):
        elu_of_sum(torch.arange(3))
    with pytest.raises(ValueError, match=r"residual of shape \(3, 4\); expected that of x, \(2, 3, 4\)"):
        elu_of_sum(x, x[0])
    with pytest.raises(ValueError, match=r"bias of shape \(4,\); expected \(3,\)"):
        elu_of_sum(x, None, x[0, 0])


def test_rows_say_which_backend_serves() -> None:
    assert [row.name for row in package.backends() if row.serves] == ["reference", "reference"]


@pytest.mark.parametrize("name", ["value", "value with bias", "value with bias last", "first", "second"])
@pytest.mark.parametrize("element", ["fp32", "bf16"])
def test_every_access_to_an_image_is_a_vector(name: str, element: str) -> None:
    pytest.importorskip("triton")
    from eblvm.kernels.elu_of_sum import triton
    from eblvm.kernels.runtime import triton_report

    (variant,) = (v for v in triton.variants() if v.name == f"elu_of_sum {name} {element}")
    # A bias whose channels lie apart is one number per program and vector.
    assert triton_report.compiled(variant, 80).vector_loads >= (2 / 3 if name == "value with bias" else 1)


def test_the_end_of_a_net_of_16_bits() -> None:
    x, r, b, g = (t.to(torch.bfloat16) for t in inputs((2, 3, 5, 4)))
    given = [t.requires_grad_() for t in (x, r, b)]
    found, wanted = [], []
    for to, op in ((found, elu_of_sum), (wanted, lambda *t, dtype: (None, reference.value(*t)[1].to(dtype)))):
        _, y = op(*given, dtype=torch.float32)
        score = torch.autograd.grad(y, x, g.float(), create_graph=True)[0]
        to += [y, score, *torch.autograd.grad(score.float().square().sum() + y.sum(), given)]
    assert [t.dtype for t in found] == [torch.float32] + 4 * [torch.bfloat16]
    for a, e in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, e, rtol=2e-2, atol=2e-2)
