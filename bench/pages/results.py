"""What methods reach: evaluated runs collected into a record, and docs/results.md made from the records.

`python -m eblvm.bench.pages.results NAME RUN...` collects the eval.json of run folders; without arguments it only
makes the page.
"""

from pathlib import Path
from typing import Any

from eblvm.bench.measurements import fid, posterior_features
from eblvm.bench.measurements import results as measured
from eblvm.bench.reproduce import listing, running
from eblvm.bench.reproduce.experiments import find
from eblvm.bench.tools import records
from eblvm.engine import tables

DOCUMENT = records.SOURCE / "docs" / "results.md"
INTRODUCTION = """\
# Results

Made from `bench/records/` by `python -m eblvm.bench.pages.results`; change the records, not this page.

Log-likelihoods are in nats on the test set: exact by enumeration where h has at most 20 units, by AIS elsewhere (its
standard error beside it; "a to b" is the bracket of reverse and forward AIS). "Fisher" is the exact score matching loss
on the test set, the Fisher divergence less a constant of the data. "best" is the model with the lowest validation loss,
"last" the one at the end of training.
"""
NOTES = {
    "freyface": """\
The BiSM paper (Table 1) reports, as log-likelihood and Fisher: DSM 129.23, -5885.09; BiDSM N=0 107.59, -5474.52;
N=1 110.65, -5516.07; N=5 124.00, -5780.18; N=10 125.72, -5800.17. It samples the KL, draws fresh noise in every step
and unrolls Adam. The exact KL does most: with it the default (shared noise, Adam, N=5) passes the published N=10. Of
SGD's step sizes 0.05 is the best; the automatic one is 6 / lambda_max, about 0.027 here. The AIS
log-likelihood of SGD's smallest step stands far above all others at a worse Fisher and is not to be believed, although
its standard error is small: the bracket of the next table shows it. Fisher is exact.

VaGES-DSM (L=2 and K=5, the defaults, independent sets) stands between N=1 and N=5 of BiDSM in both figures, and between
N=0 and N=1 in time and memory: [performance.md](performance.md) has them side by side.
""",
    "freyface-bracket": """\
Three of these models between reverse AIS (a lower bound on the log-likelihood) and forward AIS (an upper bound), 500
chains and 2,000 temperatures each way; as they bound in expectation, tight ones may cross by their errors. The default
is known to a fraction of a nat, and SGD's largest step is as bad as forward AIS said. Of its smallest step more than a
hundred nats lie between the bounds, each with a standard error below a fifth of a nat: neither is an estimate.
""",
    "freyface-newton": """\
BiDSM by the Newton step (K=5) beside DSM with the same seed: every bit of theta is equal. AIS has 500 chains and 1,000
temperatures each way; the lower end of seed 1's bracket differs in its second decimal, which is not explained.
[newton.md](newton.md) has the times.
""",
    "checkerboard": """\
Of the 4x4 board on [-4, 4]^2, which the recipe `checkerboard` was at that commit and `checkerboard4` is now. After
convergence: a higher learning rate with a cosine schedule, for DSM and BiDSM also more noise than the 0.05
at which 100,000 steps at a constant rate do not converge on [-4, 4]^2 (the variance of the target hides the
score). Mean and deviation of ten seeds.
""",
    "celeba32-bidvl": """\
The small variant of the recipe, 28 minutes of one core on 4,500 faces; the best of ten validations. RMSE is that of
test images in [0, 1]: of reconstructions, and of the training set's mean image in their place. AUROC is that of the
negative energy, test faces against uniform noise, SVHN and CIFAR-10: this energy tells noise from faces surely, other
images poorly. Distances are Euclidean, of samples and of test images to the nearest training image. To the eye: samples
are faces of many kinds, about half of them clear, the others soft or bent; reconstructions keep pose, hair, skin and
background and lose identity and most glasses and hats. Samples, and interpolations between reconstructions of training
images:

![samples of the small CelebA model](celeba32-bidvl-samples.png)

![interpolations of the small CelebA model](celeba32-bidvl-interpolation.png)
""",
    "mnist": """\
The small variants of the recipe, 16x16 pixels (BiDVL: 32x32), on the CPU. The SVMs are scikit-learn's LinearSVC, fitted
on the first 10,000 training images; to them the posterior's means of the score matching models are worth less than the
pixels, those of BiDVL's encoder more. The AUROCs are of a lower bound on log p~(v), whose mean standard error in nats
stands below each, against uniform noise and CelebA in grey; distances are Euclidean, of samples and of test images to
the nearest training image. 200 samples of 900 Langevin steps against 200 training images are too few for a FID to be
compared with any other. BiDVL's is a run of four minutes; its energy is exact, so its AUROCs have no error. Samples of
p(v|h), h the posterior means of training data, by BiMDSM above and by VaGES-MDSM (L = 2, C = 5) below; of the second
about one in three is a digit, the others have its strokes:

![samples of the small MNIST model](mnist-small.png)

![samples of the small MNIST model trained by VaGES](mnist-vages.png)
""",
}


def render(folder: Path) -> str:
    parts = [INTRODUCTION]
    for found in records.newest(folder, "results-*", measured.SCHEMA):
        parts.append(f"## {found['recipe']}\n")
        if found["recipe"] in NOTES:
            parts.append(NOTES[found["recipe"]])
        where = f"{found['machine']['cpu']}; `{found['file']}`"
        origin = f"Collected {found['date']} at commit {found['commit']}, {where}."
        parts.append(f"{origin}\n\n{tables.markdown(*measured.table(found))}\n")
    parts += [reproduced(found) for found in records.newest(folder, "reproduce-*", running.SCHEMA)]
    features = records.newest(folder, "study-posterior-features", posterior_features.SCHEMA)
    parts += [posterior_features.render(found) for found in features]
    parts += [fid.render(found) for found in records.newest(folder, "fid-*", fid.SCHEMA)]
    return "\n".join(parts)


def reproduced(facts: dict[str, Any]) -> str:
    """A table or figure of a paper, beside what `eblvm reproduce` gave."""
    experiment = find(facts["experiment"])
    many = f"mean and deviation of {facts['seeds']} seeds" if facts["seeds"] > 1 else "one seed"
    shortened = f", {facts['steps']} steps" if facts["steps"] is not None else ""
    origin = f"Collected {facts['date']} at commit {facts['commit']}, {facts['machine']['cpu']}: {many}{shortened}."
    lines = [f"## {facts['experiment']}: {experiment.title}", "", f"`{facts['command']}`", ""]
    models = " and ".join(sorted({row["model"] for row in facts["rows"] if row.get("model")}))
    origin += f" Models: {models}." if models else ""
    if experiment.says:
        lines += [f"The paper: {experiment.says}.", ""]
    lines += [origin, "", tables.markdown(*listing.compared(facts)), ""]
    for picture in sorted(DOCUMENT.parent.glob(f"reproduce-{facts['experiment']}*.png")):
        lines += [f"![{experiment.title}]({picture.name})", ""]
    return "\n".join(lines)


def main() -> None:
    DOCUMENT.write_text(render(records.RECORDS))
    print(f"wrote {DOCUMENT.name}")


if __name__ == "__main__":
    main()
