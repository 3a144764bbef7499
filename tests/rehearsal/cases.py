"""The rehearsed cases: every method on every model, and every option that changes a step."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from eblvm.engine.config import Config
from eblvm.engine.methods import KINDS
from eblvm.engine.recipes import recipe

POINT, IMAGE = (56,), (3, 16, 16)


class Case(NamedTuple):
    name: str
    config: Config
    shape: tuple[int, ...]


def cases() -> dict[str, Case]:
    every = [*bars(), *grbm(), *mlp(), *deep(), *bidvl()]
    return {case.name: case for case in every}


def bars() -> Iterator[Case]:
    """Yield the steps whose launches are bounded, at the published sizes."""
    yield case("freyface bidsm N=5 K=5", recipe("freyface"), (560,))
    cifar = recipe("cifar10")
    yield case("cifar10 mdsm", cifar, (3, 32, 32), method="mdsm")
    yield case("cifar10 bimdsm N=0", cifar, (3, 32, 32))
    yield case("cifar10 mdsm bf16", cifar, (3, 32, 32), method="mdsm", precision="bf16")
    yield case("cifar10 bimdsm N=0 bf16", cifar, (3, 32, 32), precision="bf16")


def grbm() -> Iterator[Case]:
    base = recipe("freyface").replaced(latent=40, batch=20)
    for method in KINDS:
        if method == "bidvl":
            continue
        yield case(f"grbm {method}", base, POINT, method=method)
        yield case(f"grbm {method} replicas", base, POINT, method=method, replicas=3)
    for method in ("dsm", "ksd", "vages-dsm", "is-ksd"):
        yield case(f"grbm {method} plain", base, POINT, method=method, fused=False)
    for name, changes in {
        "fresh": {"noise": "fresh"},
        "sgd": {"divergence": "kl-exact", "unroll_optimizer": "sgd"},
        "sgd fresh plain": {"divergence": "kl-exact", "unroll_optimizer": "sgd", "noise": "fresh", "fused": False},
        "recompute": {"unroll_memory": "recompute"},
        "kl": {"divergence": "kl"},
        "kl of three samples": {"divergence": "kl", "latent_samples": 3},
        "plain": {"fused": False},
        "plain fresh": {"fused": False, "noise": "fresh"},
        "plain replicas": {"fused": False, "replicas": 3},
        "average and clip": {"ema": 0.999, "clip_norm": 1.0},
        "rates": {"lr": (1e-3, 2e-3)},
        "cosine": {"schedule": "cosine", "lower_lr": 1e-3, "unroll_lr": 1e-4},
        "posterior mlp": {"posterior": "mlp"},
        "posterior exact": {"posterior": "exact", "N": 0, "K": 0},
        "float64": {"dtype": "float64"},
        "micro-batch": {"micro_batch": 8},
        "N=0 K=0": {"N": 0, "K": 0},
        "newton": {"best_response": "newton"},
    }.items():
        yield case(f"grbm bidsm {name}", base, POINT, **changes)


def mlp() -> Iterator[Case]:
    base = recipe("checkerboard", "mlp").replaced(batch=20)
    for method in ("bidsm", "bissm", "bifdssm", "vages-dsm", "vages-ksd"):
        yield case(f"mlp {method}", base, (2,), method=method)
    yield case("mlp bidsm newton", base, (2,), best_response="newton")
    yield case("mlp bidsm N=2 replicas", base, (2,), N=2, replicas=2)


def deep() -> Iterator[Case]:
    base = recipe("cifar10").replaced(width=8, depth=12, posterior_width=8, latent=10, head_width=16, batch=6, K=2)
    for method in KINDS:
        if method in ("cd", "pcd", "nce", "vnce", "bidvl"):
            continue
        yield case(f"deep {method}", base, (1, 8, 8) if method == "sm" else IMAGE, method=method)
    for name, changes in {
        "N=2": {"N": 2},
        "N=2 fresh": {"N": 2, "noise": "fresh"},
        "N=2 recompute": {"N": 2, "unroll_memory": "recompute"},
        "N=2 sgd": {"N": 2, "unroll_optimizer": "sgd", "unroll_lr": 1e-4},
        "N=2 kl": {"N": 2, "divergence": "kl"},
        "newton": {"best_response": "newton"},
        "newton cg": {"best_response": "newton", "solver": "cg", "cg_iterations": 3},
        "checkpoint blocks": {"checkpoint": "blocks"},
        "checkpoint all N=2": {"checkpoint": "all", "N": 2},
        "micro-batch": {"micro_batch": 4},
        "micro-batch N=2": {"micro_batch": 4, "N": 2},
        "bf16": {"precision": "bf16"},
        "bf16 channels-last N=2": {"precision": "bf16", "N": 2, "channels_last": True},
        "bf16 channels-last checkpoint all": {"precision": "bf16", "channels_last": True, "checkpoint": "all"},
        "fp16": {"precision": "fp16"},
        "fp16 N=2": {"precision": "fp16", "N": 2},
        "fp16 micro-batch": {"precision": "fp16", "micro_batch": 4},
        "tf32": {"precision": "tf32"},
        "channels-last": {"channels_last": True},
        "average and clip": {"ema": 0.999, "clip_norm": 1.0},
        "replicas": {"replicas": 2},
        "replicas N=2": {"replicas": 2, "N": 2},
        "silu": {"activation": "silu"},
        "published": {"network": "published"},
        "flip and dequantize": {"flip": True, "dequantize": True},
    }.items():
        yield case(f"deep bimdsm {name}", base, IMAGE, **changes)
    for name, changes in {
        "vages-mdsm bf16": {"precision": "bf16"},
        "vages-mdsm micro-batch": {"micro_batch": 4},
        "vages-mdsm replicas": {"replicas": 2},
        "mdsm fp16 checkpoint all": {"precision": "fp16", "checkpoint": "all"},
        "mdsm published": {"network": "published"},
    }.items():
        yield case(f"deep {name}", base, IMAGE, method=name.split()[0], **changes)


def bidvl() -> Iterator[Case]:
    base = recipe("cifar10", small=True, method="bidvl")
    base = base.replaced(width=8, posterior_width=8, generator_width=8, latent=10, batch=6)
    for name, changes in {
        "": {},
        "N=1": {"N": 1},
        "K=3": {"K": 3},
        "complete": {"opposite": "complete"},
        "literal": {"opposite": "literal"},
        "clamped": {"ratio_bias": "clamped"},
        "hinge": {"upper": "hinge", "output": "real"},
        "joint": {"energy": "joint", "opposite": "none"},
        "sn-resnet": {"model": "sn-resnet"},
        "N=2 recompute": {"N": 2, "unroll_memory": "recompute"},
        "average and clip": {"ema": 0.99, "clip_norm": 1.0},
    }.items():
        yield case(f"bidvl {name}".strip(), base, (3, 32, 32), **changes)


def case(name: str, base: Config, shape: tuple[int, ...], **changes: Any) -> Case:
    kinds = {k: v for k, v in changes.items() if k in ("method", "model")}
    rest = {k: v for k, v in changes.items() if k not in kinds}
    config = base.replaced(device="cuda", **kinds)
    return Case(name, config.replaced(**rest), shape)
