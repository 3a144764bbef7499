"""Services that get a run's curves and pictures: TensorBoard, Weights & Biases, MLflow.

A logger has the three methods of `Logger`; another service is another class with them and a name in LOGGERS.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from eblvm.engine.durable import make_folder
from eblvm.engine.errors import UserError


class Logger(Protocol):
    def scalars(self, step: int, values: Mapping[str, float]) -> None: ...
    def images(self, step: int, paths: Mapping[str, Path]) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    def __init__(self, folder: Path, start: int, config: Mapping[str, Any]):
        from torch.utils.tensorboard import SummaryWriter

        make_folder(folder / "tensorboard")
        self.board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.board.add_scalar(name, value, step)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        import matplotlib.image

        for name, path in paths.items():
            self.board.add_image(name, matplotlib.image.imread(path)[..., :3], step, dataformats="HWC")

    def close(self) -> None:
        self.board.close()


class WandB:
    """A Weights & Biases run whose id follows from the run's folder: a continued run continues there too."""

    def __init__(self, folder: Path, start: int, config: Mapping[str, Any]):
        wandb = _module("wandb")
        name = folder.resolve()
        identity = hashlib.sha256(str(name).encode()).hexdigest()[:16]
        self.wandb = wandb
        self.run = wandb.init(
            project="eblvm", name=name.name, id=identity, resume="allow", dir=str(folder), config=dict(config)
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        self.run.log({name: self.wandb.Image(str(path)) for name, path in paths.items()}, step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    def __init__(self, folder: Path, start: int, config: Mapping[str, Any]):
        self.mlflow = _module("mlflow")
        self.mlflow.set_experiment("eblvm")
        note = folder / ".mlflow"  # the id of this run at MLflow, so that it is continued
        self.run = self.mlflow.start_run(run_id=note.read_text() if note.is_file() else None, run_name=folder.name)
        note.write_text(self.run.info.run_id)
        if start == 0:
            self.mlflow.log_dict(dict(config), "config.json")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.mlflow.log_metrics({name.replace("=", " "): value for name, value in values.items()}, step=step)

    def images(self, step: int, paths: Mapping[str, Path]) -> None:
        for path in paths.values():
            self.mlflow.log_artifact(str(path), "previews")

    def close(self) -> None:
        self.mlflow.end_run()


def _module(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(f"--logger {name} needs the package; pip install 'eblvm[{name}]', or remove --logger") from None


LOGGERS: dict[str, Callable[[Path, int, Mapping[str, Any]], Logger]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}
