"""torch-fidelity: FID from the same features."""

from typing import Any

from eblvm.bench.contestants.roster import contestant


class FromFeatures:
    def __init__(self, task: Any):
        from torch_fidelity import metric_fid  # its package imports torchvision

        self.fid = metric_fid
        self.one, self.other = ({"2048": x} for x in task.sets())

    def distance(self) -> float:
        of = self.fid.fid_featuresdict_to_statistics
        metrics = self.fid.fid_statistics_to_metric(of(self.one, "2048"), of(self.other, "2048"), False)
        return float(next(iter(metrics.values())))

    def __call__(self) -> None:
        self.distance()


@contestant("torch-fidelity", "data", task="fid", needs="torch_fidelity")
def fid(task: Any) -> FromFeatures:
    return FromFeatures(task)
