"""A run's configuration: one flat, frozen dataclass. A recipe is a function that returns one, options replace fields.

`mathematical` fields decide the numbers a run produces; a run folder can only be continued with the same ones.
"""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch

from eblvm.engine.autodiff.mixed_precision import PRECISIONS
from eblvm.engine.errors import UserError, unknown
from eblvm.engine.models.bidvl import MODELS as BIDVL_MODELS
from eblvm.engine.models.deep import ACTIVATIONS, CHECKPOINTS, DEPTHS, PIECEWISE_LINEAR
from eblvm.engine.optim import apex

SCORE_MATCHING = ("sm", "ssm", "dsm", "mdsm", "ksd")
BILEVEL = ("bissm", "bidsm", "bimdsm")
VAGES = ("vages-dsm", "vages-mdsm", "vages-ssm", "vages-ksd")
SAMPLED = (*VAGES, "is-ksd")  # estimates from samples of q
VARIATIONAL = (*BILEVEL, *SAMPLED)
METHODS = (*SCORE_MATCHING, *VARIATIONAL, "cd", "pcd", "nce", "vnce", "bidvl")
OPPOSITE = ("offset", "complete", "literal", "none")
RATIO_BIASES = ("none", "sigmoid", "clamped")
CUTS = CHECKPOINTS[1:]  # that rebuild something


def option(default: Any, help: str, *, choices: tuple[str, ...] = (), mathematical: bool = True) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices, "mathematical": mathematical})


@dataclass(frozen=True)
class Config:
    recipe: str = option("checkerboard", "the recipe this configuration started from")
    small: bool = option(False, "the recipe's variant that trains on a CPU in minutes")
    method: str = option("bidsm", "training method", choices=METHODS)

    # Model
    model: str = option(
        "grbm",
        "the energy; 'custom' is given in Python, see docs/models.md; the nets of bidvl are 'sn-conv' or 'sn-resnet'",
        choices=("grbm", "deep", "custom", *BIDVL_MODELS),
    )
    latent: int = option(4, "H, the number of latent units")
    posterior: str = option(
        "linear",
        "net of q(h|v): 'exact' is the GRBM's own, 'conv' a deep model's Gaussian",
        choices=("linear", "mlp", "exact", "conv"),
    )
    posterior_width: int = option(64, "hidden width of the mlp posterior, channels of the conv one")
    width: int = option(128, "channels of a deep energy's first layer")
    generator_width: int = option(48, "channels of bidvl's generator, as posterior-width of its encoder")
    depth: int = option(18, f"3x3 convolutions of a deep energy ({', '.join(map(str, DEPTHS))})")
    head_width: int = option(128, "width of a deep energy's last layer")
    activation: str = option("elu", "activation of a deep energy", choices=tuple(ACTIVATIONS))
    temperature: float = option(0.1, "Gumbel-Softmax temperature of q's samples")

    # Method
    N: int = option(5, "unrolled lower steps that the upper gradient flows through")
    K: int = option(5, "real lower steps on q a minibatch")
    noise: str = option(
        "shared", "draw the perturbed batch once a minibatch or in every step", choices=("shared", "fresh")
    )
    divergence: str = option("kl-exact", "lower level's divergence", choices=("kl", "kl-exact", "fisher"))
    latent_samples: int = option(1, "samples of h in the divergence (and in vnce's importance average)")
    unroll_optimizer: str = option("adam", "optimiser of the unrolled steps", choices=("adam", "sgd"))
    unroll_lr: float | None = option(
        None, "step size of the unrolled steps; none: that of phi for Adam, from the batch's curvature for SGD"
    )
    unroll_memory: str = option(
        "store",
        "keep the unroll's graph, or rebuild it step by step (pays where q's activations outweigh its parameters)",
        choices=("store", "recompute", "compiled"),
    )
    sync: str = option(
        "global",
        "of several processes: average the unrolled steps over all, as one process would, or leave each its own",
        choices=("global", "local"),
    )
    memory_budget: float = option(
        0.5, "with --unroll-memory compiled: share of the activations that the compiler may keep"
    )
    L: int = option(2, "samples of h in an estimate of vages and is-ksd")
    covariance: str = option(
        "unbiased",
        "VaGES's covariance over L-1 or L samples; 'none' leaves the score's estimate with fixed samples",
        choices=("unbiased", "biased", "none"),
    )
    samples: str = option(
        "independent",
        "vages: sets of samples of their own for the loss, the second-order term and the covariance, or one for all",
        choices=("independent", "shared"),
    )
    control_variate: bool = option(False, "vages: subtract grad_v log q(h|v) from the estimate of the score")
    C: int = option(0, "vages: Langevin steps on h that correct the samples of q")
    langevin_step: float | None = option(None, "their step size; none: 2e-4 a latent unit")
    langevin_noise: float = option(1e-4, "their noise's standard deviation")
    kernel_width: float = option(1.0, "width of KSD's kernel exp(-|v-v'|^2 / (2 width^2))")
    sigma: float = option(0.05, "noise level of denoising score matching")
    sigma_range: tuple[float, ...] = option((0.05, 0.5), "lowest and highest noise level of mdsm")
    sigma_spacing: str = option("geometric", "spacing of mdsm's noise levels", choices=("geometric", "linear"))
    sigma0: float = option(0.1, "target noise level of mdsm")
    directions: int = option(1, "random directions a sample in sliced score matching")
    direction: str = option("rademacher", "distribution of those directions", choices=("rademacher", "gaussian"))
    sweeps: int = option(1, "k, Gibbs sweeps a step of cd and pcd")

    # Method bidvl
    bidvl_energy: str = option(
        "decoupled", "E(v) beside q(h|v), or one E(v, h) of both", choices=("decoupled", "joint")
    )
    bidvl_divergence: str = option(
        "symmetric", "lower level's divergence; 'kl' is AdVIL's form", choices=("symmetric", "kl")
    )
    bidvl_opposite: str = option(
        "offset",
        "the terms D(p||q) of both levels that oppose each other: offset (Eq. 13-14), complete with the stable upper "
        "term (Eq. 11, section 4.4), literal with its own (Eq. 11-12), or none of them",
        choices=OPPOSITE,
    )
    bidvl_latent: str = option(
        "mean",
        "that D(p||q) as the mean squared error of h, as the released code has it, or as the negative log density",
        choices=("mean", "density"),
    )
    bidvl_ratio: float = option(0.05, "r', the mean importance ratio of data in the lower level")
    bidvl_bias: str = option(
        "none", "its factor by sample (Eq. 15): none, a sigmoid, or clamped to 0.8 .. 1.2", choices=RATIO_BIASES
    )
    bidvl_upper: str = option("plain", "upper level: Eq. 14, or its hinge form (Eq. 23)", choices=("plain", "hinge"))
    bidvl_output: str = option(
        "softplus", "energy above zero, or any real number, as the hinge needs", choices=("softplus", "real")
    )

    # Optimisation
    steps: int = option(100_000, "training steps")
    batch: int = option(100, "minibatch size")
    lr: tuple[float, ...] = option((1e-3,), "Adam's learning rate for theta; a list trains one replica each")
    lower_lr: float | None = option(None, "Adam's learning rate for phi; none: that of theta")
    optimizer: str = option("adam", "who takes theta's Adam step: the engine, or NVIDIA apex", choices=("adam", "apex"))
    beta1: float = option(0.9, "Adam's first decay")
    beta2: float = option(0.95, "Adam's second decay")
    weight_decay: float = option(0.0, "L2 in the gradient of phi")
    schedule: str = option("constant", "learning rate schedule", choices=("constant", "cosine", "step"))
    decay_every: int = option(10_000, "steps between decays of the step schedule")
    decay: float = option(0.5, "factor of the step schedule")
    clip_norm: float | None = option(None, "clip theta's gradient to this norm")
    ema: float | None = option(None, "decay of a moving average of theta, kept beside it")
    seed: int = option(0, "seed of everything random")
    replicas: int = option(1, "seeds trained at once: seed, seed+1, ...")

    # Running
    data: str | None = option(None, "path of the data set, where the recipe needs one", mathematical=False)
    input: str = option(
        "memory", "the data set in memory, or pictures decoded ahead of the step", choices=("memory", "dali")
    )
    flip: bool = option(False, "mirror images at random")
    dequantize: bool = option(False, "train on (x + u)/256 with u uniform, in place of x/255")
    cache: str | None = option(
        None, "folder of the stores made from pictures; none: $EBLVM_CACHE, or the user's cache", mathematical=False
    )
    device: str = option("cpu", "cpu or cuda", mathematical=False)
    threads: int = option(1, "CPU threads; more than one rarely pays for a GRBM", mathematical=False)
    size: int | None = option(None, "resize images to this many pixels; none: the recipe's own size")
    dtype: str = option("float32", "float32 or float64", choices=("float32", "float64"))
    precision: str = option(
        "fp32", "of a deep model's networks; tf32: of CUDA's products, fp16: with a loss scale", choices=PRECISIONS
    )
    channels_last: bool = option(False, "images and convolutions in channels_last memory order")
    checkpoint: str = option(
        "none",
        "rebuild a deep energy's activations in backward, block by block, or within these layer by layer too; auto: as "
        "the plan for the device's memory says",
        choices=("auto", *CHECKPOINTS),
        mathematical=False,
    )
    micro_batch: int | None = option(
        None,
        "samples that go through the networks at once, with the same result; none: a process's part of the batch",
        mathematical=False,
    )
    fused: bool = option(True, "take the fused native step where a method has one; it equals the other to rounding")
    compile: bool = option(False, "compile the whole step with torch.compile")
    validations: int = option(10, "evaluations of the validation loss in a run, 0 for none")
    log_every: int = option(100, "steps between lines of stats.jsonl", mathematical=False)
    checkpoint_every: int = option(1000, "steps between checkpoints", mathematical=False)
    keep: int = option(2, "checkpoints kept", mathematical=False)

    def replaced(self, **changes: Any) -> "Config":
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Config":
        known = {f.name for f in fields(cls)}
        if extra := set(values) - known:
            raise UserError(
                f"this run's config has fields that this version does not know: {', '.join(sorted(extra))}; "
                "it was written by another version: use that one"
            )
        fixed: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**fixed)

    @property
    def replicated(self) -> bool:
        return self.replicas > 1 or len(self.lr) > 1

    @property
    def variational(self) -> bool:
        """Does the method learn a posterior q(h|v) of a model with latent units?"""
        return self.method in VARIATIONAL

    def validate(self) -> None:
        """Every mistake that can be seen without data, as one sentence each."""
        for f in fields(self):
            choices, value = f.metadata["choices"], getattr(self, f.name)
            if choices and value not in choices:
                raise unknown(f.name.replace("_", "-"), str(value), list(choices))
        at_least = {
            "N": 0, "K": 0, "L": 1, "C": 0, "latent": 1, "latent_samples": 1, "directions": 1, "sweeps": 1, "steps": 1,
            "batch": 1, "replicas": 1, "log_every": 1, "checkpoint_every": 1, "keep": 1, "validations": 0, "seed": 0,
            "posterior_width": 1, "decay_every": 1, "threads": 1, "width": 1, "head_width": 1,
            "generator_width": 1, "weight_decay": 0,
        }  # fmt: skip
        for name, low in at_least.items():
            if getattr(self, name) < low:
                raise UserError(f"got {name.replace('_', '-')}={getattr(self, name)}, expected {low} or more")
        positive = ("temperature", "sigma", "sigma0", "lower_lr", "unroll_lr", "clip_norm", "langevin_step")
        for name in (*positive, "kernel_width", "bidvl_ratio"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"got {name.replace('_', '-')}={value}, expected a positive number")
        if not self.lr or any(not rate > 0 for rate in self.lr):
            raise UserError(f"got lr={self.lr}, expected positive learning rates")
        if len(self.sigma_range) != 2 or not 0 < self.sigma_range[0] <= self.sigma_range[1]:
            raise UserError(f"got sigma-range={self.sigma_range}, expected two numbers, 0 < lowest <= highest")
        if self.ema is not None and not 0 < self.ema < 1:
            raise UserError(f"got ema={self.ema}, expected a decay between 0 and 1, such as 0.999")
        for name in ("beta1", "beta2", "decay"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"got {name}={getattr(self, name)}, expected a number from 0 to below 1")
        if self.seed + self.replicas >= 2**63:
            raise UserError(f"got seed={self.seed}, expected seeds below 2^63")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            raise UserError(f"got device={self.device!r}, expected cpu or cuda (cuda:0, cuda:1, ...)") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError("got device 'cuda', but torch sees no CUDA device here; use --device cpu")
        if self.method in SAMPLED:
            self._validate_sampled()
        if self.method.endswith("ksd") and self.batch % 2:
            raise UserError(
                f"method {self.method!r} pairs the halves of a batch, got batch={self.batch}, expected an even number"
            )
        if self.optimizer == "apex":
            apex.require()
            if device.type != "cuda" or self.compile or self.replicated:
                raise UserError("optimizer 'apex' is for the eager, single run on --device cuda; use 'adam'")
        if (self.method == "bidvl") != (self.model in BIDVL_MODELS):
            raise UserError(
                f"method 'bidvl' and the models {' and '.join(map(repr, BIDVL_MODELS))} belong together, got method "
                f"{self.method!r} with model {self.model!r}; use --method bidvl on a recipe of images"
            )
        if self.method == "bidvl":
            self._validate_bidvl()
        if self.model == "deep":
            self._validate_deep()
        if self.model == "grbm":
            self._validate_grbm()
        if self.micro_batch is not None:
            self._validate_micro_batch()
        if not 0 < self.memory_budget <= 1:
            raise UserError(f"got memory-budget={self.memory_budget}, expected a share above 0, at most 1")
        if self.unroll_memory == "compiled" and not self.compile:
            raise UserError("unroll-memory 'compiled' is the compiler's own trade of memory for time; add --compile")

    def _validate_sampled(self) -> None:
        if self.method in VAGES and self.covariance != "none" and self.L < 2:
            raise UserError(
                f"a covariance needs at least two samples, got L={self.L}; use --L 2 or more, or --covariance none"
            )
        if not self.langevin_noise >= 0:
            raise UserError(f"got langevin-noise={self.langevin_noise}, expected 0 or more")
        if self.C and (self.model == "grbm" or self.method == "is-ksd"):
            raise UserError(
                f"C={self.C} Langevin steps need a continuous h and vages, got model {self.model!r} and method "
                f"{self.method!r}; use --C 0"
            )
        if self.C and self.control_variate:
            raise UserError(
                "the control variate has mean zero for samples of q, which Langevin steps move away from q; "
                "use --C 0 or --no-control-variate"
            )

    def _validate_deep(self) -> None:
        if self.method not in (*SCORE_MATCHING, *VARIATIONAL):
            raise UserError(
                f"method {self.method!r} needs the GRBM's conditionals or its normaliser, a deep model has neither; "
                f"use one of {', '.join((*SCORE_MATCHING, *VARIATIONAL))}"
            )
        if self.depth not in DEPTHS:
            raise UserError(f"got depth={self.depth}, expected one of {', '.join(map(str, DEPTHS))}")
        if self.variational and self.posterior != "conv":
            raise UserError(f"a deep model has a Gaussian posterior, got posterior {self.posterior!r}; use 'conv'")
        if self.variational and self.divergence == "kl-exact":
            raise UserError("the exact KL is the GRBM's, whose energy is linear in h; use --divergence fisher or kl")
        if self.method in BILEVEL and self.N > 0 and self.activation in PIECEWISE_LINEAR:
            raise UserError(
                f"N={self.N} needs a twice differentiable energy, {self.activation!r} has no second derivative; "
                "use 'elu', 'silu' or 'softplus', or N=0"
            )
        if self.unroll_optimizer == "sgd" and self.unroll_lr is None and self.method in BILEVEL and self.N > 0:
            raise UserError("unrolled SGD on a deep model needs a step size; give --unroll-lr, or use Adam")
        if self.checkpoint in CUTS and (self.compile or self.replicated):
            raise UserError(
                "checkpoint is for the eager, single run; with --compile use --unroll-memory compiled, and train "
                "replicas one by one"
            )
        if self.checkpoint in CUTS and (self.method == "sm" or self.method.endswith("ssm")):
            raise UserError(
                f"method {self.method!r} needs a third derivative, a checkpointed model has two; use --checkpoint none"
            )
        if self.precision == "fp16" and (self.compile or self.method not in ("dsm", "mdsm", "bidsm", "bimdsm")):
            raise UserError(
                "precision 'fp16' scales the gradients of eager denoising methods; use bf16, or leave --compile and "
                f"method {self.method!r}"
            )
        if self.precision != "fp32" and self.dtype != "float32":
            raise UserError(f"precision {self.precision!r} is for dtype float32, got {self.dtype!r}")

    def _validate_micro_batch(self) -> None:
        if self.micro_batch is not None and self.micro_batch < 1:
            raise UserError(f"got micro-batch={self.micro_batch}, expected 1 or more")
        if self.method not in (*SCORE_MATCHING, *VARIATIONAL) or self.compile or self.replicated:
            raise UserError("micro-batch is for the eager, single run of a score matching method; leave it out")
        if self.method.endswith("ksd"):
            raise UserError(f"method {self.method!r} pairs the samples of a batch; leave micro-batch out")
        if self.variational and self.noise == "fresh":
            raise UserError("micro-batch needs the features of one batch for all lower steps; use --noise shared")

    def _validate_bidvl(self) -> None:
        if self.K < 1:
            raise UserError("got K=0, expected 1 or more: the lower level is where encoder and generator learn")
        if self.bidvl_energy == "joint" and self.bidvl_opposite != "none":
            raise UserError(
                "the opposite terms come from decoupling the energy, a joint one has none; add --bidvl-opposite none"
            )
        never = self.bidvl_energy == "decoupled" and self.bidvl_opposite in ("offset", "none")
        if self.bidvl_divergence == "kl" and never:
            raise UserError(
                f"with divergence 'kl' and opposite {self.bidvl_opposite!r} no term is left that trains the encoder; "
                "use --bidvl-opposite complete, or --bidvl-divergence symmetric"
            )
        if self.bidvl_upper == "hinge" and self.bidvl_output == "softplus":
            raise UserError("a softplus energy never passes the hinge at -1; add --bidvl-output real")
        if self.precision != "fp32" or self.checkpoint != "none" or self.channels_last or self.compile:
            raise UserError(
                "method 'bidvl' is the eager step in full precision; leave --precision, --checkpoint, --channels-last "
                "and --compile out"
            )
        if self.unroll_optimizer != "adam":
            raise UserError("method 'bidvl' unrolls the Adam that phi takes; leave --unroll-optimizer out")

    def _validate_grbm(self) -> None:
        if self.posterior == "conv" or self.divergence == "fisher":
            raise UserError(
                "a GRBM has binary h: its posterior is 'linear', 'mlp' or 'exact', its divergence 'kl' or 'kl-exact'; "
                f"got {self.posterior!r} and {self.divergence!r}; for a deep model give --model deep"
            )
        if self.posterior == "exact" and (self.N or self.K):
            raise UserError(f"posterior 'exact' has nothing to step on, got N={self.N} K={self.K}; use --N 0 --K 0")
        if self.posterior == "exact" and self.method == "vnce":
            raise UserError("method 'vnce' learns q, posterior 'exact' has nothing to learn; use 'linear' or 'mlp'")
        automatic = self.method in BILEVEL and self.unroll_optimizer == "sgd" and self.unroll_lr is None and self.N > 0
        if automatic and (self.posterior == "mlp" or self.divergence != "kl-exact"):
            raise UserError(
                "the automatic step size of unrolled SGD needs a linear posterior and the exact KL, whose curvature it "
                "bounds; give --divergence kl-exact, or a step size --unroll-lr"
            )

    def differences(self, other: "Config") -> list[str]:
        """The mathematical fields in which another run's config differs; `steps` only where the schedule needs it."""
        found = []
        for f in fields(self):
            free = not f.metadata["mathematical"] or (f.name == "steps" and self.schedule != "cosine")
            if not free and getattr(self, f.name) != getattr(other, f.name):
                found.append(f"{f.name} {getattr(other, f.name)!r} -> {getattr(self, f.name)!r}")
        return found
