"""Kan et al. 2022, bi-level doubly variational learning: every table and figure with samples or numbers."""

from eblvm.bench.reproduce.experiments import Experiment, Row

FID, RMSE = "fid_50000", "reconstruction_rmse"
OOD = "--ood svhn=svhn.npz --ood celeba=celeba"


def bidvl(label: str, options: str, paper: dict[str, float], evaluate: str = "--fid 50000") -> Row:
    recipe, _, rest = options.partition(" ")
    return Row(label, " ".join(f"{recipe} --method bidvl {rest}".split()), paper, evaluate)


EXPERIMENTS = (
    Experiment(
        "bidvl-table1", "FID on CIFAR-10 and CelebA-64 (samples: Fig. 2 and 3)",
        (bidvl("CIFAR-10", "cifar10", {FID: 20.75}), bidvl("CelebA-64", "celeba64", {FID: 17.24})), (FID,),
        data="cifar10.npz, celeba/", needs="gpu",
    ),
    Experiment("bidvl-table2", "FID on CelebA-32", (bidvl("CelebA-32", "celeba32", {FID: 4.47}),), (FID,),
               data="celeba/", needs="gpu"),
    Experiment(
        "bidvl-fig2", "samples of SVHN", (bidvl("SVHN", "svhn", {}, "--draw 100"),), says="clear house numbers",
        data="svhn.npz", needs="gpu",
    ),
    Experiment(
        "bidvl-table3", "reconstruction of test images, RMSE (pictures: Fig. 4)",
        (bidvl("CIFAR-10", "cifar10", {RMSE: 0.168}, ""), bidvl("CelebA-64", "celeba64", {RMSE: 0.187}, "")), (RMSE,),
        data="cifar10.npz, celeba/", needs="gpu",
        small=(bidvl("CIFAR-10, small", "cifar10 --small --steps 4500", {RMSE: 0.168}, ""),),
    ),
    Experiment(
        "bidvl-table4", "out-of-distribution detection, AUROC",
        (bidvl("CIFAR-10", "cifar10", {"auroc_uniform": 1.0, "auroc_svhn": 0.76, "auroc_celeba": 0.77}, OOD),),
        ("auroc_uniform", "auroc_svhn", "auroc_celeba"), data="cifar10.npz, svhn.npz, celeba/", needs="gpu",
        small=(bidvl("CIFAR-10, small", "cifar10 --small --steps 4500",
                     {"auroc_uniform": 1.0, "auroc_svhn": 0.76, "auroc_celeba": 0.77}, OOD),),
    ),
    Experiment(
        "bidvl-table5", "FID on CIFAR-10 by the basic ratio",
        tuple(bidvl(f"r'={r:g}", f"cifar10 --ratio {r:g}", {FID: x})
              for r, x in {0.01: 22.62, 0.05: 20.75, 0.1: 21.90, 0.5: 26.82, 1.0: 29.72}.items()),
        (FID,), data="cifar10.npz", needs="gpu",
    ),
    Experiment(
        "bidvl-table6", "FID and RMSE on CIFAR-10 by the opposite terms",
        (bidvl("without", "cifar10 --opposite none", {FID: 20.24, RMSE: 0.175}),
         bidvl("offset", "cifar10", {FID: 20.75, RMSE: 0.168}),
         bidvl("not offset", "cifar10 --opposite complete", {FID: 21.54, RMSE: 0.170})),
        (FID, RMSE), data="cifar10.npz", needs="gpu",
    ),
    Experiment(
        "bidvl-fig5", "ResNets: CIFAR-10 (Fig. 5), CelebA-128 (Fig. 6 and 7)",
        (bidvl("CIFAR-10, ResNet", "cifar10 --model sn-resnet --upper hinge --output real", {FID: 16.37}),
         bidvl("CelebA-128", "celeba128", {}, "--draw 100")),
        (FID,), "clear faces at 128x128", "cifar10.npz, celeba/", "gpu",
    ),
)  # fmt: skip
