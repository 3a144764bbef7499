"""Experiments of the papers: their runs, the published figures, and their needs. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from eblvm.engine.errors import unknown


@dataclass(frozen=True)
class Row:
    """One run. `train` is what follows `eblvm train`, `evaluate` what follows `eblvm eval RUN`; `paper` has the
    published value of every figure that is compared, by its name in eval.json. A row without a published value may
    be compared with another row: `beside` is that row's label. `study` names a study in place of an evaluation."""

    label: str
    train: str
    paper: dict[str, float] = field(default_factory=dict)
    evaluate: str = ""
    beside: str = ""
    study: str = ""

    @property
    def steps(self) -> int | None:
        """The value of `--steps`, if the command has it."""
        words = self.train.split()
        return int(words[words.index("--steps") + 1]) if "--steps" in words else None


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. `says` is what it shows where it has no figures to compare; `small` are rows for a
    CPU where the published ones need a GPU; `shown` are the figures of eval.json that are reported."""

    name: str
    title: str
    rows: tuple[Row, ...]
    shown: tuple[str, ...] = ()
    says: str = ""
    data: str = ""  # the file or folder that it reads
    needs: str = "cpu"
    seeds: int = 1  # trained at once, as replicas
    small: tuple[Row, ...] = ()
    picture: str = ""  # drawn of all its runs, see `pictures`

    @property
    def paper(self) -> str:
        return self.name.split("-")[0]

    def chosen(self, small: bool) -> tuple[Row, ...]:
        return self.small if small else self.rows


NAMES = {
    "test_log_likelihood": "log-likelihood (nats)",
    "test_fisher": "Fisher",
    "svm_posterior_accuracy": "SVM on posterior means",
    "svm_pixels_accuracy": "SVM on pixels",
    "reconstruction_rmse": "RMSE",
    "fid_50000": "FID, 50,000 samples",
    "fid_1000": "FID, 1,000 samples",
    "auroc_svhn": "AUROC, SVHN",
    "auroc_celeba": "AUROC, CelebA",
    "auroc_uniform": "AUROC, uniform noise",
    "inception_score": "Inception score",
}


def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the order of the papers."""
    from eblvm.bench.reproduce import bidvl, bism, vages

    return {e.name: e for e in (*bism.EXPERIMENTS, *vages.EXPERIMENTS, *bidvl.EXPERIMENTS)}


def find(name: str) -> Experiment:
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, list(known))
    return known[name]
