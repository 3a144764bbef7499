"""Figures of a run of BiDVL: reconstruction, out-of-distribution detection by the energy; pictures of what it makes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.engine import replicas
from eblvm.engine.data import images
from eblvm.engine.data.files import read_npz
from eblvm.engine.errors import UserError
from eblvm.engine.eval import pictures
from eblvm.engine.objectives.bidvl import centred, squared_error
from eblvm.engine.run import Run
from eblvm.engine.samplers.generator import FRAMES, PIECE, generate, trained
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, purpose

EVAL_SEED = 2**41  # evaluation noise is the same for every run
SHOWN = 100  # samples of a picture, half as many reconstructions beside their originals


@torch.no_grad()
def rows(run: Run, model: str, outside: Mapping[str, Path]) -> list[dict[str, Any]]:
    """test_rmse of reconstructions and that of the training set's mean image, both of images in [-1, 1]; the mean
    energy of test images; auroc_NAME of the negative energy against uniform noise and each data set `outside`."""
    objective, state = trained(run, model)
    data, seed = run.dataset, run.config.seed
    test = data.floats(data.test)

    def pieces(fn: Callable[[Tensor], Tensor], v: Tensor) -> Tensor:
        return torch.cat([fn(piece) for piece in v.split(PIECE)])

    def energy(v: Tensor) -> Tensor:
        return pieces(lambda piece: objective.marginal_energy(state, piece), v)

    rebuilt = pieces(lambda piece: objective.reconstruct(state, piece), test)
    mean_image = pieces(lambda piece: data.floats(piece).double().sum(0, keepdim=True), data.train).sum(0)
    mean_image = (mean_image / len(data.train)).to(test)
    inside = energy(test)
    noise = philox.uniform(
        Key(EVAL_SEED, 0), purpose(Purpose.EVAL), len(test), tuple(test.shape[1:]), dtype=test.dtype, device=test.device
    )
    row: dict[str, Any] = {
        "replica": replicas.names(run.config)[0],
        "test_rmse": rmse(test, rebuilt),
        "mean_image_rmse": rmse(test, mean_image.expand_as(test)),
        "test_energy": float(inside.mean()),
        "auroc_uniform": auroc(inside, energy(noise)),
    }
    for name, path in outside.items():
        other = data.floats(held_out(name, path, run.shape).to(test.device))
        row[f"auroc_{name}"] = auroc(inside, energy(other))

    pictures.image_grid(generate(run, model, SHOWN, seed), run.folder / "samples.png")
    pairs = torch.stack([test[: SHOWN // 2], rebuilt[: SHOWN // 2]], 1).flatten(0, 1)
    pictures.image_grid(pairs, run.folder / "reconstructions.png")
    pictures.image_grid(generate(run, model, 10, seed, "interpolation"), run.folder / "interpolation.png", FRAMES)
    return [row]


def rmse(v: Tensor, other: Tensor) -> float:
    """The root of the mean squared difference of a pixel, of images of [0, 1] in [-1, 1]."""
    return float((squared_error(centred(v), centred(other)).double().mean() / v[0].numel()).sqrt())


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The probability that a sample inside has the lower energy, ties counted half."""
    from sklearn.metrics import roc_auc_score  # slow to import

    labels = torch.cat([torch.ones(len(inside)), torch.zeros(len(outside))])
    return float(roc_auc_score(labels.numpy(), -torch.cat([inside, outside]).cpu().double().numpy()))


def held_out(name: str, path: Path, shape: tuple[int, ...]) -> Tensor:
    """Test images of another data set at this one's size, uint8: an .npz with `x_test`, or a folder of faces."""
    if path.is_dir():
        v = images.celeba(path, shape[-1]).test
    else:
        x = torch.from_numpy(read_npz(path, "x_test", (None, None, None, 3)))
        v = images.resized(x.permute(0, 3, 1, 2).contiguous(), shape[-1])
    if tuple(v.shape[1:]) != shape:
        raise UserError(f"--ood {name}: got images of {list(v.shape[1:])}, expected those of the run, {list(shape)}")
    return v


def named_paths(given: list[str]) -> dict[str, Path]:
    """`--ood NAME=PATH` options as a dict."""
    found = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not (name and equals and path):
            raise UserError(f"got --ood {text}, expected NAME=PATH, such as svhn=svhn.npz")
        found[name] = Path(path)
    return found
