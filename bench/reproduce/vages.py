"""Bao et al. 2021, VaGES: the tables and figures of its appendix, which repeats or extends those of the paper."""

from eblvm.bench.reproduce.bism import BISM, BOARD, COMPILED, LL
from eblvm.bench.reproduce.experiments import Experiment, Row

VAGES = "--divergence kl"
DEEP = "--method vages-mdsm --network published --ema 0.999"
STEPS = {20: (1e-3, 2e-3, 4e-3, 6e-3, 10e-3), 50: (2.5e-3, 5e-3, 10e-3, 15e-3, 25e-3), 100: (10e-3, 20e-3, 30e-3)}
FID = "fid_50000"


def cifar10(label: str, options: str, fid: float) -> Row:
    return Row(label, f"cifar10 {DEEP} {options}", {FID: fid}, "--fid 50000 --model ema")


EXPERIMENTS = (
    Experiment(
        "vages-fig2", "checkerboard: KSD, VaGES-KSD and IS-KSD (appendix Fig. 2; Fig. 2 of the paper)",
        (
            Row("KSD", f"{BOARD} --method ksd"),
            *(Row(f"VaGES-KSD L={L}", f"{BOARD} --method vages-ksd {VAGES} --L {L}", beside="KSD") for L in (2, 5, 10)),
            *(Row(f"IS-KSD L={L}", f"{BOARD} --method is-ksd --L {L}") for L in (2, 5, 10)),
        ),
        (LL,), "VaGES-KSD as good as KSD, better than IS-KSD; ten seeds", seeds=10, picture="checkerboard",
    ),
    Experiment(
        "vages-fig3", "checkerboard: VaGES-DSM and the other methods (Fig. 3 and 4)",
        (
            Row("DSM", f"{BOARD} --method dsm"),
            Row("VaGES-DSM", f"{BOARD} --method vages-dsm {VAGES} --noise fresh", beside="DSM"),
            Row("BiDSM", f"{BOARD} --method bidsm {BISM} --noise fresh --N 5", beside="DSM"),
            Row("CD-1", f"{COMPILED} --method cd --sweeps 1"),
            Row("PCD-1", f"{COMPILED} --method pcd --sweeps 1"),
            Row("NCE", f"{COMPILED} --method nce"),
            Row("VNCE", f"{COMPILED} --method vnce"),
        ),
        (LL,), "VaGES-DSM like DSM, BiDSM and CD; ten seeds", seeds=10, picture="checkerboard",
    ),
    Experiment(
        "vages-fig5", "samples and interpolations, MNIST, CIFAR-10 and CelebA (Fig. 5 and 6)",
        (
            Row("MNIST", f"mnist {DEEP}", evaluate="--draw 100 --model ema"),
            Row("CIFAR-10", f"cifar10 {DEEP}", {"inception_score": 7.53}, "--fid 50000 --model ema"),
            Row("CelebA64", f"celeba64 {DEEP} --depth 18", evaluate="--draw 100 --model ema"),
        ),
        ("inception_score",), "samples of all three", "mnist.npz, cifar10.npz, celeba/", "gpu",
    ),
    Experiment(
        "vages-fig7", "checkerboard: the control variate",
        tuple(
            Row(f"{name}{', control variate' if on else ''}",
                f"{BOARD} --method {name.lower()} {VAGES}{how}{' --control-variate' if on else ''}",
                beside=name if on else "")
            for name, how in (("VaGES-KSD", ""), ("VaGES-DSM", " --noise fresh")) for on in (False, True)
        ),
        (LL,), "it gains little for KSD and nothing for DSM; ten seeds", seeds=10, picture="checkerboard",
    ),
    Experiment(
        "vages-table1", "Langevin step and noise by the dimension of h, FID of 1,000 samples on CIFAR-10",
        tuple(
            Row(f"H={h} step {step:g}", f"cifar10 {DEEP} --latent {h} --langevin-alpha {step:g}",
                evaluate="--fid 1000 --model ema")
            for h, steps in STEPS.items() for step in steps
        ),
        ("fid_1000",), "54 to 60 for the middle steps, divergence outside them, at noise 1e-4 to 1e-2", "cifar10.npz",
        "gpu",
    ),
    Experiment(
        "vages-table2", "minutes and memory of 2,000 iterations",
        (Row("CIFAR-10", f"cifar10 {DEEP} --batch 64 --steps 2000"),
         Row("CelebA64", f"celeba64 {DEEP} --depth 18 --batch 16 --steps 2000")),
        says="CIFAR-10, batch 64: VaGES 24 min, 5.8 GB; BiSM N=0, 2, 5: 19, 25, 34 min, 6.8, 7.8, 9.5 GB; RTX 2080 Ti",
        data="cifar10.npz, celeba/", needs="gpu",
    ),
    Experiment(
        "vages-table3", "sensitivity on CIFAR-10, FID",
        (
            *(cifar10(f"H={h}", f"--latent {h}", x) for h, x in {20: 26.55, 50: 28.09, 100: 27.78}.items()),
            *(cifar10(f"{d} layers", f"--depth {d}", x) for d, x in {12: 36.17, 24: 25.98}.items()),
            *(cifar10(f"L={L}", f"--L {L}", x) for L, x in {5: 31.21, 10: 29.26}.items()),
            *(cifar10(f"noise {s:g}", f"--langevin-noise {s:g}", x) for s, x in {1e-3: 25.83, 1e-2: 30.47}.items()),
            cifar10("KL", "--divergence kl", 29.13),
        ),
        (FID,), data="cifar10.npz", needs="gpu",
    ),
    Experiment(
        "vages-fisher", "Fisher divergence of a GRBM by a critic (appendix F.3)", (Row("critic", "", study="fisher"),),
        ("relative_error",), "the estimate follows the true divergence", seeds=3,
    ),
    Experiment(
        "vages-theory", "bias of VaES and VaGES against the divergence (appendix F.4)",
        (Row("GRBM, KL", "", study="theory-grbm"), Row("Gaussian model, Fisher", "", study="theory-gaussian")),
        ("slope_vaes", "slope_vages"), "both biases fall like the square root of the divergence", "frey.npz", seeds=3,
    ),
)  # fmt: skip
