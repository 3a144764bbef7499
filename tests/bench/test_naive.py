"""Engine against naive procedure in fp64: the same call as the correctness gate of every `eblvm bench`."""

from dataclasses import replace

import pytest
import torch

from eblvm.bench.contestants.steps import NaiveStep, has_naive
from eblvm.bench.naive import BiDsm
from eblvm.bench.tools import agreement, registry
from eblvm.bench.tools.agreement import AgreementError
from eblvm.bench.tools.registry import Case

SIZE = {"batch": 13, "latent": 7}


def small(case: Case) -> Case:
    return replace(case, config=case.config.replaced(**SIZE), shape=(min(case.visible, 11),))


CASES = [small(case) for suite in ("grbm", "toy") for case in registry.cases(suite)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_and_naive_gradients_agree(case: Case) -> None:
    assert has_naive(case)
    assert agreement.check(case) <= agreement.TOLERANCE


@pytest.mark.parametrize("noise", ["fresh", "shared"])
@pytest.mark.parametrize("unroll", ["adam", "sgd"])
@pytest.mark.parametrize("memory", ["store", "recompute"])
@pytest.mark.parametrize("divergence", ["kl", "kl-exact"])
def test_all_semantics_agree(noise: str, unroll: str, memory: str, divergence: str) -> None:
    semantics = {"noise": noise, "divergence": divergence, "unroll_optimizer": unroll, "unroll_memory": memory}
    rate = 0.02 if unroll == "sgd" else None
    config = registry.recipe("digits").replaced(**SIZE, **semantics, unroll_lr=rate, N=3)
    agreement.check(Case(config, (11,)))


def test_a_wrong_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A naive procedure that leaves out one unrolled step must not pass."""
    unrolled = BiDsm.unrolled_steps

    def shorter(self: BiDsm, *arguments: object) -> object:
        self.N -= 1
        return unrolled(self, *arguments)

    monkeypatch.setattr(BiDsm, "unrolled_steps", shorter)
    with pytest.raises(AgreementError, match="no speed is reported"):
        agreement.check(
            Case(
                registry.recipe("digits").replaced(**SIZE, divergence="kl", unroll_optimizer="sgd", unroll_lr=0.02),
                (11,),
            )
        )


def test_naive_steps_train() -> None:
    """A naive run lowers DSM's loss: it is a training procedure, not only a gradient."""
    step = NaiveStep(Case(registry.recipe("digits").replaced(**SIZE, lr=(0.02,)), (11,)))
    (method,) = step.methods

    def loss() -> float:
        torch.manual_seed(0)
        eps = torch.randn(2000, 11)
        x = (step.v.mean(0) + method.sigma * eps).requires_grad_()
        (score,) = torch.autograd.grad(-method.model.free_energy(x).sum(), x)
        return float((score + eps / method.sigma).square().sum(-1).mean())

    before = loss()
    for _ in range(30):
        step()
    assert loss() < 0.9 * before
