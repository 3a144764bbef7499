"""What is constant in a compiled step of a GRBM, for every library that compiles one."""

from __future__ import annotations

from typing import NamedTuple

from eblvm.bench.tools.registry import Case


class Settings(NamedTuple):
    """DSM has no lower level: neither steps nor samples of h."""

    N: int
    K: int
    sigma: float
    lr: float
    betas: tuple[float, float]
    temperature: float
    sgd_rate: float | None
    exact: bool
    shared: bool

    @classmethod
    def of(cls, case: Case) -> Settings:
        c = case.config
        bilevel = c["method"] == "bidsm"
        return cls(
            N=c["N"] if bilevel else 0,
            K=c["K"] if bilevel else 0,
            sigma=c["sigma"],
            lr=c["lr"][0],
            betas=(c["beta1"], c["beta2"]),
            temperature=c["temperature"] if bilevel else 1.0,
            sgd_rate=c["unroll_lr"] if bilevel and c["unroll_optimizer"] == "sgd" else None,
            exact=bilevel and c["divergence"] == "kl-exact",
            shared=bilevel and c["noise"] == "shared",
        )
