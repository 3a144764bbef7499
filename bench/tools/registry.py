"""The cases of the suites `grbm` and `toy` and of the gates: configurations of the engine, and a batch's width."""

from dataclasses import dataclass
from typing import Any

from eblvm.engine.config import Config
from eblvm.engine.errors import unknown
from eblvm.engine.recipes import recipe

LABELS = {"unroll_optimizer": "unroll"}
SEMANTICS: tuple[dict[str, Any], ...] = (
    {"noise": "fresh", "divergence": "kl", "unroll_optimizer": "adam"},  # as published
    {"noise": "shared", "divergence": "kl-exact", "unroll_optimizer": "sgd"},  # the dual unroll's
)


@dataclass(frozen=True)
class Case:
    """A configuration of the engine on a batch of samples of a shape. `labels` are the options named in addition to
    those that the method itself calls for; `title` is a name of its own."""

    config: Config
    shape: tuple[int, ...]
    labels: tuple[str, ...] = ()
    title: str = ""
    naive: bool = False  # timed against the naive procedure too

    @property
    def visible(self) -> int:
        return self.shape[0]

    @property
    def name(self) -> str:
        """Space-separated key=value pairs: the case's identity in records."""
        if self.title:
            return self.title
        c = self.config
        pairs: dict[str, Any] = {"method": c.method.kind}
        if c.get("divergence") is not None:  # it has a lower level
            pairs |= {"noise": c.get("noise", "shared"), "divergence": c["divergence"]}
            pairs |= {LABELS.get(n, n): c[n] for n in ("unroll_optimizer", "L", "N", "K") if c.get(n) is not None}
        known = {
            "memory": c.get("unroll_memory", "store"),
            "fused": "yes" if c.step.fused else "no",
            "replicas": c.optimisation.replicas,
            "D": self.visible,
            "H": c.model.latent,
        }
        pairs |= {label: known[label] for label in self.labels}
        return " ".join(f"{key}={value}" for key, value in pairs.items())


def cases(suite: str) -> list[Case]:
    makers = {"grbm": grbm, "toy": toy, "gates": gates}
    if suite not in makers:
        raise unknown("suite", suite, list(makers))
    return makers[suite]()


def grbm() -> list[Case]:
    """Frey face's sizes (B=100, D=560, H=400): N at K=5 and K at N=5, as BiSM's Table 3, in both semantics, and DSM."""
    pairs = [(N, 5) for N in (0, 1, 5, 10)] + [(5, K) for K in (1, 2, 10)]
    base = recipe("freyface")
    bilevel = [
        Case(base.replaced(method="bidsm", **semantics, N=N, K=K), (560,)) for semantics in SEMANTICS for N, K in pairs
    ]
    return [*bilevel, Case(base.replaced(method="dsm"), (560,))]


def toy() -> list[Case]:
    """Checkerboard's sizes (B=100, D=2, H=4), one run against ten replicas in one vmapped step."""
    base = recipe("checkerboard")
    bilevel = [
        Case(base.replaced(**semantics, replicas=replicas), (2,), ("replicas",))
        for semantics in SEMANTICS
        for replicas in (1, 10)
    ]
    return [*bilevel, *(Case(base.replaced(method="dsm", replicas=r), (2,), ("replicas",)) for r in (1, 10))]


def gates() -> list[Case]:
    """A small fixed set that touches every method and memory mode, fused and by autograd: where regressions show."""
    frey, digits, board = recipe("freyface"), recipe("digits"), recipe("checkerboard")
    generic, size = {"fused": False}, ("D", "H")
    chosen = [
        Case(frey.replaced(**semantics, **generic, unroll_memory=memory), (560,), ("memory", *size))
        for semantics in SEMANTICS
        for memory in ("store", "recompute")
    ]
    chosen += [Case(digits.replaced(method="bidsm", N=0, **generic), (64,), size)]
    methods = (
        "bissm",
        "bimdsm",
        "sm",
        "ssm",
        "dsm",
        "mdsm",
        "cd",
        "pcd",
        "nce",
        "vnce",
        "vages-dsm",
        "vages-ssm",
        "ksd",
    )
    chosen += [Case(digits.replaced(method=method), (64,), size) for method in methods]
    chosen += [Case(board.replaced(replicas=10, **generic), (2,), ("replicas", *size))]
    chosen += [Case(frey.replaced(**semantics), (560,), ("fused", *size)) for semantics in SEMANTICS]
    return [*chosen, Case(board.replaced(replicas=10), (2,), ("fused", "replicas", *size))]
