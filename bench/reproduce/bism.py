"""Bao et al. 2020, bi-level score matching: every table and figure."""

from eblvm.bench.reproduce.experiments import Experiment, Row

LL, FISHER = "test_log_likelihood", "test_fisher"
# As published: the KL by a sample of h, fresh noise in every step, Adam unrolled.
BISM = "--divergence kl --best-response unroll"
FREY = f"freyface --method bidsm {BISM} --noise fresh"
BOARD = "checkerboard --replicas 10 --checkpoint-every 5000 --keep 100"
COMPILED = f"{BOARD} --compile"  # where there is no fused step
DEEP = "--method bimdsm --network published --best-response unroll"


def frey(label: str, train: str, fisher: float, likelihood: float | None = None) -> Row:
    return Row(label, train, {FISHER: fisher} | ({LL: likelihood} if likelihood is not None else {}))


TABLE1 = (
    frey("DSM", "freyface --method dsm", -5885.09, 129.23),
    frey("BiDSM N=0", f"{FREY} --N 0", -5474.52, 107.59),
    frey("BiDSM N=1", f"{FREY} --N 1", -5516.07, 110.65),
    frey("BiDSM N=5", f"{FREY} --N 5", -5780.18, 124.00),
    frey("BiDSM N=10", f"{FREY} --N 10", -5800.17, 125.72),
)
CHECKERBOARD = (
    Row("DSM", f"{BOARD} --method dsm"),
    Row("BiDSM", f"{BOARD} --method bidsm {BISM} --noise fresh --N 5", beside="DSM"),
    Row("SSM", f"{COMPILED} --method ssm"),
    Row("BiSSM", f"{COMPILED} --method bissm {BISM} --N 5", beside="SSM"),
    Row("CD-1", f"{COMPILED} --method cd --sweeps 1"),
    Row("CD-5", f"{COMPILED} --method cd --sweeps 5"),
    Row("PCD-1", f"{COMPILED} --method pcd --sweeps 1"),
    Row("NCE", f"{COMPILED} --method nce"),
    Row("VNCE", f"{COMPILED} --method vnce"),
)
SIZES = {50: (-5703.89, -5609.25), 100: (-5728.65, -5670.93), 200: (-5798.64, -5736.73), 400: (-5885.09, -5800.17),
         500: (-5895.96, -5814.74)}  # fmt: skip
BY_K = {0: -3775.31, 1: -5684.97, 5: -5780.18, 10: -5795.52}
SVM, PIXELS = "svm_posterior_accuracy", "svm_pixels_accuracy"
MNIST = {20: 0.9385, 50: 0.9739, 100: 0.9775}
CIFAR10 = {20: 0.3483, 50: 0.3958, 100: 0.4646}
FIDS = {20: (34.55, 26.62), 50: (38.82, 29.43), 100: (36.13, 26.90)}


def latent(recipe: str, sizes: tuple[int, ...] = (20, 50, 100), evaluate: str = "") -> tuple[Row, ...]:
    return tuple(Row(f"{recipe} H={h}", f"{recipe} {DEEP} --latent {h}", evaluate=evaluate) for h in sizes)


EXPERIMENTS = (
    Experiment(
        "bism-fig1", "gradient bias against N and K, GRBM on Frey face",
        (Row("BiDSM N=5", f"{FREY} --N 5 --steps 2000", study="bias"),),
        says="the bias falls about exponentially with N, and with K", data="frey.npz",
    ),
    Experiment(
        "bism-fig2", "checkerboard: densities and log-likelihood of all methods (Fig. 2 and 3)", CHECKERBOARD,
        (LL, FISHER), "BiSSM and BiDSM as good as SSM and DSM; ten seeds", seeds=10, picture="checkerboard",
    ),
    Experiment(
        "bism-table1", "GRBM on Frey face by N, and its samples (Fig. 6)", TABLE1, (LL, FISHER), data="frey.npz",
        seeds=3,
    ),
    Experiment(
        "bism-fig4", "samples, MNIST and CIFAR-10, of an EBM and an EBLVM",
        (
            Row("MNIST MDSM", "mnist --method mdsm --network published", evaluate="--draw 100"),
            Row("MNIST BiMDSM", f"mnist {DEEP}", evaluate="--draw 100"),
            Row("CIFAR-10 MDSM", "cifar10 --method mdsm --network published", evaluate="--draw 100"),
            Row("CIFAR-10 BiMDSM", f"cifar10 {DEEP}", evaluate="--draw 100"),
        ),
        says="samples of both are alike", data="mnist.npz, cifar10.npz", needs="gpu",
    ),
    Experiment(
        "bism-fig5", "learning curves, MNIST and CIFAR-10", (*latent("mnist"), *latent("cifar10")),
        ("test_loss", "test_divergence"), "D_F(q||p) falls from 1e4 or 1e5 to 10 or 100", "mnist.npz, cifar10.npz",
        "gpu",
    ),
    Experiment(
        "bism-table2", "FID on CIFAR-10",
        (
            Row("MDSM", "cifar10 --method mdsm --network published --keep 100",
                {"fid_50000": 39.12, "fid_1000": 30.19}, "--fid 50000"),
            *(Row(f"BiMDSM H={h}", f"cifar10 {DEEP} --latent {h} --keep 100", {"fid_50000": fid, "fid_1000": early},
                  "--fid 50000")
              for h, (fid, early) in FIDS.items()),
        ),
        ("fid_50000",), "the second figure of the paper is the best of the checkpoints: `eblvm eval --study "
        "early-stopping`", "cifar10.npz", "gpu",
    ),
    Experiment(
        "bism-fig7", "GRBM on Frey face by K",
        tuple(frey(f"BiDSM K={K}", f"{FREY} --N 5 --K {K}", value) for K, value in BY_K.items()), (FISHER,),
        data="frey.npz", seeds=3,
    ),
    Experiment(
        "bism-fig8", "GRBM on Frey face by the dimension of h",
        tuple(
            row
            for h, (dsm, bidsm) in SIZES.items()
            for row in (frey(f"DSM H={h}", f"freyface --method dsm --latent {h}", dsm),
                        frey(f"BiDSM H={h}", f"{FREY} --N 10 --latent {h}", bidsm))
        ),
        (FISHER,), data="frey.npz", seeds=3,
    ),
    Experiment(
        "bism-table3", "seconds of 100 iterations, GRBM on Frey face, by N, K and method",
        (Row("BiDSM", FREY, study="profile"),),
        says="4.35, 5.07, 8.61, 13.78 s at N=0, 1, 5, 10; 7.30, 7.75, 8.61, 10.82 s at K=1, 2, 5, 10; GTX 1080 Ti",
        data="frey.npz", needs="gpu",
    ),
    Experiment(
        "bism-fig9", "samples by the dimension of h (Fig. 9), and given h (Fig. 10)",
        (*latent("mnist", evaluate="--draw 100"), *latent("cifar10", evaluate="--draw 100"),
         *latent("celeba32", evaluate="--draw 100")),
        says="meaningful samples at every H", data="mnist.npz, cifar10.npz, celeba/", needs="gpu",
    ),
    Experiment(
        "bism-table4", "linear SVM on posterior means, and t-SNE (Fig. 11)",
        (
            *(Row(f"MNIST H={h}", f"mnist {DEEP} --latent {h}", {SVM: x, PIXELS: 0.9158}) for h, x in MNIST.items()),
            *(Row(f"CIFAR-10 H={h}", f"cifar10 {DEEP} --latent {h}", {SVM: x, PIXELS: 0.2819})
              for h, x in CIFAR10.items()),
        ),
        (SVM, PIXELS), data="mnist.npz, cifar10.npz", needs="gpu",
    ),
    Experiment(
        "bism-fig12", "samples at 64x64, CelebA", (Row("CelebA64 H=20", f"celeba64 {DEEP} --latent 20",
                                                       evaluate="--draw 100"),),
        says="diverse faces", data="celeba/", needs="gpu",
    ),
)  # fmt: skip
