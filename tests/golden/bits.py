"""The bits of a run: hashes of everything that 20 training steps leave behind, for every method, model and mode.

A refactor changes no bits. `python -m tests.golden.bits` compares this tree with the table for machines of this kind in
`bits.json`; `--write` records it, on a kind of machine that the table does not know yet, at a commit known to be
right. Other instructions round differently, and torch's library chooses its products by the CPU's vendor too, so a kind
of machine is both.

A case is hashed from what a user sees: the checkpoint and the log of a run. The noise of a step is hashed by its sorted
values, so that the order of its axes does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import eblvm
from eblvm.engine.config import Config
from eblvm.engine.methods.base import Rows
from eblvm.kernels.philox import Key

TABLE = Path(__file__).with_name("bits.json")
STEPS = 20
CLOCK = ("seconds", "samples_per_second", "memory_mib")  # columns of the log that the clock decides

Case = dict[str, Any]  # recipe, method, model and options of a run, and "processes" where there are several


def board(method: str, **options: Any) -> Case:
    return {"recipe": "checkerboard", "method": method, "batch": 20, **options}


def points(method: str, **options: Any) -> Case:
    return {"recipe": "moons", "model": "mlp", "method": method, "width": 12, "head_width": 9, "batch": 20, **options}


def faces(method: str, **options: Any) -> Case:
    return {"recipe": "freyface", "method": method, "latent": 13, "batch": 20, **options}


def digits(method: str, **options: Any) -> Case:
    small = {"width": 4, "depth": 12, "latent": 5, "posterior_width": 4, "batch": 8, "K": 2}
    given = {"recipe": "digits", "model": "deep", "method": method, **small, **options}
    if method == "mdsm":
        del given["K"], given["posterior_width"]
    return given


def generator(**options: Any) -> Case:
    widths = {"width": 4, "posterior_width": 4, "generator_width": 4, "latent": 5, "batch": 8}
    return {"recipe": "digits", "method": "bidvl", **widths, **options}


def residual(**options: Any) -> Case:
    return {**generator(model="sn-resnet", batch=4, small=True), **options, "recipe": "cifar10"}


GRBM = (
    "dsm", "ssm", "sm", "fdssm", "mdsm", "ksd", "bidsm", "bissm", "bimdsm", "bifdssm", "vages-dsm", "vages-ssm",
    "vages-mdsm", "vages-ksd", "is-ksd", "cd", "pcd", "nce", "vnce",
)  # fmt: skip
LATENT = ("bidsm", "bissm", "bimdsm", "bifdssm", "vages-dsm", "vages-ssm", "vages-mdsm", "vages-ksd", "is-ksd")
DEEP = ("mdsm", "bimdsm", "bidsm", "bissm", "vages-mdsm", "vages-ssm", "vages-ksd")
UNROLLED = ("bidsm", "bissm", "bimdsm", "bifdssm")
FUSED = ("dsm", "ksd", "bidsm", "vages-dsm", "vages-ksd", "is-ksd")
CHUNKED = tuple(m for m in GRBM if m.endswith(("dsm", "ssm", "sm")))


def own(method: str) -> dict[str, Any]:
    """Few unrolled steps, where a method has them."""
    return {"N": 2, "K": 2} if method in UNROLLED else {}


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for m in GRBM:
        found[f"grbm {m}"] = board(m, **own(m))
        found[f"grbm {m}, replicas"] = board(m, replicas=3, **own(m))
        if m in FUSED:
            found[f"grbm {m}, unfused"] = board(m, fused=False, **own(m))
            found[f"grbm {m}, unfused replicas"] = board(m, fused=False, replicas=2, **own(m))
        if m in CHUNKED:
            found[f"grbm {m}, micro-batch"] = board(m, micro_batch=7, **own(m))
    for m in LATENT:
        found[f"mlp {m}"] = points(m, **own(m))
        found[f"mlp {m}, replicas"] = points(m, replicas=2, **own(m))
        if m in CHUNKED:
            found[f"mlp {m}, micro-batch"] = points(m, micro_batch=7, **own(m))
    for m in DEEP:
        found[f"deep {m}"] = digits(m, **({"N": 1} if m in UNROLLED else {}))
    for m in ("mdsm", "bimdsm", "vages-mdsm"):
        found[f"deep {m}, micro-batch"] = digits(m, micro_batch=3)
        found[f"deep {m}, bf16"] = digits(m, precision="bf16")
        found[f"deep {m}, channels-last"] = digits(m, channels_last=True)
        found[f"deep {m}, checkpoint=blocks"] = digits(m, checkpoint="blocks")
        found[f"deep {m}, checkpoint=all"] = digits(m, checkpoint="all")
        found[f"deep {m}, published"] = digits(m, network="published") if m == "mdsm" else (
            {k: v for k, v in digits(m, network="published").items() if k != "posterior_width"})  # fmt: skip
    found |= {
        # BiSM's options
        "grbm bidsm, N=0": board("bidsm", N=0),
        "grbm bidsm, kl": board("bidsm", N=2, divergence="kl"),
        "grbm bidsm, kl, unfused": board("bidsm", N=2, divergence="kl", fused=False),
        "grbm bidsm, kl of 3": board("bidsm", N=2, divergence="kl", latent_samples=3),
        "grbm bidsm, iwae": board("bidsm", N=1, divergence="iwae", latent_samples=3),
        "grbm bidsm, fresh": board("bidsm", N=2, noise="fresh"),
        "grbm bidsm, fresh, unfused": board("bidsm", N=2, noise="fresh", fused=False),
        "grbm bidsm, sgd": board("bidsm", N=4, unroll_optimizer="sgd"),
        "grbm bidsm, sgd, unfused": board("bidsm", N=4, unroll_optimizer="sgd", fused=False),
        "grbm bidsm, sgd of a rate": board("bidsm", N=3, unroll_optimizer="sgd", unroll_lr=0.5, fused=False),
        "grbm bidsm, recompute": board("bidsm", N=2, unroll_memory="recompute"),
        "grbm bidsm, recompute replicas": board("bidsm", N=2, unroll_memory="recompute", replicas=2),
        "grbm bidsm, newton": board("bidsm", best_response="newton"),
        "grbm bidsm, newton, unfused": board("bidsm", best_response="newton", fused=False),
        "grbm bidsm, mlp posterior": board("bidsm", N=2, posterior="mlp"),
        "grbm bidsm, mlp posterior, newton": board("bidsm", posterior="mlp", best_response="newton"),
        "grbm bidsm, exact posterior": board("bidsm", N=0, K=0, posterior="exact"),
        "grbm bidsm, exact, micro-batch": board("bidsm", N=0, K=0, posterior="exact", micro_batch=7),
        "grbm bidsm, clipped": board("bidsm", N=2, clip_norm=0.5, lower_clip_norm=0.1),
        "grbm bidsm, ema": board("bidsm", N=2, ema=0.9, schedule="cosine"),
        "grbm bidsm, ema replicas": board("bidsm", N=2, ema=0.9, replicas=2, lr=(1e-3, 1e-2)),
        "grbm bidsm, rmsprop": board("bidsm", N=2, optimizer="rmsprop"),
        "grbm bidsm, momentum": board("bidsm", N=2, optimizer="sgd", lower_optimizer="adam", ema=0.9),
        "grbm bidsm, float64": board("bidsm", N=2, dtype="float64"),
        "grbm bidsm, fixed sigma": board("bidsm", N=2, fixed_sigma=0.5),
        "grbm dsm, fixed sigma": board("dsm", fixed_sigma=0.5, clip_norm=0.1),
        "grbm ssm, gaussian": board("ssm", directions=3, direction="gaussian"),
        "mlp bidsm, newton": points("bidsm", best_response="newton"),
        "mlp bidsm, newton full": points("bidsm", best_response="newton", response_block="full", response_steps=2),
        "mlp bidsm, newton pairs": points("bidsm", best_response="newton", response_score="pairs"),
        "mlp bidsm, newton cg": points("bidsm", best_response="newton", solver="cg", response_score="single"),
        "mlp bidsm, newton, micro-batch": points("bidsm", best_response="newton", micro_batch=7),
        "mlp bidsm, fisher": points("bidsm", N=1, K=2, divergence="fisher"),
        "mlp bidsm, iwae": points("bidsm", N=1, K=2, divergence="iwae"),
        "deep bimdsm, newton": digits("bimdsm", best_response="newton"),
        "deep bimdsm, newton full": digits("bimdsm", best_response="newton", response_block="full"),
        "deep bimdsm, kl-exact": digits("bimdsm", divergence="kl-exact", N=1),
        "deep bimdsm, fp16": digits("bimdsm", precision="fp16", N=1, ema=0.9),
        "deep bimdsm, fresh": digits("bimdsm", noise="fresh", N=1),
        "deep bimdsm, softplus": digits("bimdsm", activation="softplus", lower_lr=1e-2),
        # VaGES's and importance sampling's
        "grbm vages-dsm, biased": board("vages-dsm", covariance="biased", samples="shared", L=5),
        "grbm vages-dsm, biased, unfused": board("vages-dsm", covariance="biased", samples="shared", L=5, fused=False),
        "grbm vages-dsm, none": board("vages-dsm", covariance="none", control_variate=True),
        "grbm vages-dsm, none, unfused": board("vages-dsm", covariance="none", control_variate=True, fused=False),
        "grbm vages-dsm, exact": board("vages-dsm", K=0, posterior="exact"),
        "grbm is-ksd, uniform": board("is-ksd", K=0, proposal="uniform"),
        "grbm is-ksd, uniform, unfused": board("is-ksd", K=0, proposal="uniform", fused=False),
        "grbm is-ksd, q": board("is-ksd", K=2, proposal="q", L=3, fused=False),
        "deep vages-mdsm, langevin": digits("vages-mdsm", C=3, L=3),
        "deep vages-mdsm, shared": digits("vages-mdsm", C=0, samples="shared", control_variate=True),
        # contrastive methods, and NCE
        "faces cd, 3 sweeps": faces("cd", sweeps=3),
        "faces pcd, 3 sweeps": faces("pcd", sweeps=3, ema=0.9),
        "faces nce, standard": faces("nce", contrast="standard"),
        "faces vnce, 3 samples": faces("vnce", latent_samples=3, contrast="fitted", K=2),
        "faces bidsm": faces("bidsm", N=2),
        "faces vages-ksd": faces("vages-ksd"),
        # BiDVL
        "bidvl": generator(),
        "bidvl, complete": generator(opposite="complete", K=2),
        "bidvl, literal": generator(opposite="literal", latent_term="density", ratio_bias="clamped"),
        "bidvl, joint": generator(energy="joint", opposite="none", divergence="kl", upper="hinge", output="real"),
        "bidvl, unrolled": generator(N=1, ratio_bias="sigmoid"),
        "bidvl, recompute": generator(N=2, unroll_memory="recompute"),
        "bidvl, pass": generator(power_iteration="pass", initial="normal", latent_term="sum"),
        "bidvl, micro-batch": generator(micro_batch=3),
        "bidvl, checkpoint": generator(checkpoint="blocks"),
        "bidvl, channels-last": generator(channels_last=True),
        "bidvl, bf16": generator(precision="bf16", ema=0.9),
        "bidvl, fp16": generator(precision="fp16", weight_decay=1e-3, clip_norm=1.0),
        "bidvl, sn-resnet": residual(),
        "bidvl, sn-resnet, micro-batch": residual(micro_batch=3),
        # compiled steps
        "grbm dsm, compiled": board("dsm", compile=True),
        "grbm bidsm, compiled": board("bidsm", N=1, K=1, compile=True),
        "grbm vages-dsm, compiled replicas": board("vages-dsm", K=1, compile=True, replicas=2),
        "mlp bissm, compiled": points("bissm", N=1, K=1, compile=True),
    }
    for m in ("dsm", "ksd", "bidsm", "vages-dsm", "cd", "pcd", "nce", "vnce"):
        found[f"grbm {m}, two processes"] = board(m, processes=2, **own(m))
    found["deep bimdsm, two processes"] = digits("bimdsm", N=1, processes=2)
    found["deep bimdsm, two processes, micro-batch"] = digits("bimdsm", micro_batch=3, processes=2)
    found["deep vages-mdsm, two processes"] = digits("vages-mdsm", processes=2)
    found["bidvl, two processes"] = generator(N=1, processes=2)
    return found


def pictures(shape: tuple[int, ...], count: int = 200) -> eblvm.Dataset:
    v = torch.from_numpy(np.random.default_rng(0).random((count, *shape), dtype=np.float32))
    return eblvm.Dataset(v[: count // 2], v[count // 2 : -count // 4], v[-count // 4 :])


DATA = {"freyface": (30,), "cifar10": (3, 32, 32)}  # recipes that would need files get pictures of this shape


def hashes(name: str, case: Case) -> str:
    """One digest of the run: its checkpoint and its log."""
    with tempfile.TemporaryDirectory() as folder:
        out, arguments = Path(folder) / "run", {k: v for k, v in case.items() if k != "processes"}
        arguments |= {"steps": STEPS, "validations": 1, "log_every": 7, "keep": 1, "preview_every": 0}
        if "processes" in case:
            train_in_processes(case["processes"], arguments, out)
        else:
            torch._dynamo.reset()
            shape = DATA.get(case["recipe"])
            with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
                data = None if shape is None else pictures(shape)
                eblvm.train(config_of(arguments), data=data, out=out, say=lambda _: None)
        digest = hashlib.sha256()
        (checkpoint,) = (out / "checkpoints").glob("step-*.pt")
        saved = torch.load(checkpoint, weights_only=True)
        for path, x in sorted(entries({"state": saved["state"], "best": saved["best"]})):
            digest.update(path.encode())
            digest.update(x.contiguous().numpy().tobytes() if isinstance(x, Tensor) else repr(x).encode())
        for line in (out / "stats.jsonl").read_text().splitlines():
            row = {k: v for k, v in json.loads(line).items() if k not in CLOCK}
            digest.update(json.dumps(row, sort_keys=True).encode())
        return digest.hexdigest()[:16]


def entries(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a checkpoint with its path; empty parts do not count."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from entries(value, f"{path}/{name}")
    elif not isinstance(tree, tuple) or tree:
        yield path, tree


def config_of(case: Case) -> Config:
    kinds = {name: case.get(name) for name in ("model", "small", "method")}
    config = eblvm.recipe(case["recipe"], kinds["model"], bool(kinds["small"]), kinds["method"])
    return config.replaced(**{name: value for name, value in case.items() if name not in ("recipe", *kinds)})


def train_in_processes(count: int, arguments: Case, out: Path) -> None:
    recipe, words = arguments.pop("recipe"), []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        words += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [*launcher, "-m", "eblvm", "train", recipe, *words, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)


def noise(config: Config) -> str:
    """One digest of the noise of two steps: all its numbers, each tensor once, sorted."""
    digest = hashlib.sha256()
    for step in (0, STEPS - 1):
        drawn = {(x.data_ptr(), tuple(x.shape), x.dtype): x for x in tree_leaves(drawn_noise(config, step))}
        numbers = torch.cat([x.double().flatten() for x in drawn.values()] or [torch.zeros(0)])
        digest.update(numbers.sort().values.numpy().tobytes())
    return digest.hexdigest()[:16]


def drawn_noise(config: Config, step: int) -> Any:
    seeds, shape = config.optimisation.seeds(), config.dataset.shape(config.model.images)
    v, key = torch.zeros(*seeds.shape, config.optimisation.batch, *shape), Key(seeds, step)
    nets = config.method.nets(config, v[0] if config.replicated else v)
    return config.method.draw(nets, key, Rows.of(key, v))


def noises() -> dict[str, str]:
    found = {}
    for name, case in cases().items():
        plain = all(word not in name for word in ("unfused", "micro-batch", "compiled", "processes"))
        if plain and case["recipe"] not in DATA:
            found[f"noise of {name}"] = noise(config_of(case))
    return found


def machine() -> str:
    info = Path("/proc/cpuinfo")
    vendors = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("vendor_id")]
    return f"{vendors[0] if vendors else 'unknown'} {torch.backends.cpu.get_cpu_capability()}"


def recorded() -> dict[str, str] | None:
    """The table of this kind of machine; None where nobody has recorded one."""
    return json.loads(TABLE.read_text()).get(machine()) if TABLE.is_file() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the table of this kind of machine")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    arguments = parser.parse_args()
    found = {}
    known = recorded() or {}
    for name, case in cases().items():
        if arguments.only in name:
            found[name] = hashes(name, case)
            if not arguments.write and known.get(name) != found[name]:
                print(f"differs: {name}", flush=True)
    found |= {name: value for name, value in noises().items() if arguments.only in name}
    if arguments.write:
        tables = json.loads(TABLE.read_text()) if TABLE.is_file() else {}
        TABLE.write_text(json.dumps(tables | {machine(): known | found}, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} hashes recorded for {machine()}")
        return
    differing = sorted(name for name in found if known.get(name) != found[name])
    print(f"{len(found)} hashes of {machine()}: {len(differing)} differ from the table")
    for name in differing:
        print(f"  {name}")
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
