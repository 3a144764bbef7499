"""`eblvm export`: a trained model as a folder that can be given away, with a model card."""

import copy
import tempfile
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eblvm.engine import recipes
from eblvm.engine.durable import make_folder, write_atomic
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.compare import read_evaluation
from eblvm.engine.optim import replicas
from eblvm.engine.runs import exported, parent
from eblvm.engine.runs.folder import CUSTOM_MODELS, write_config
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.starts import posterior_means
from eblvm.engine.versions import versions

KEPT_MEANS = 1_000  # posterior means that travel with a model, so that it samples given h where no data are
LICENCE_LINE = "The licence of these weights is for their author to state here."


def export(
    run: SavedRun, model: str, out: Path, *, safetensors: bool = True, state_dict: bool = False, onnx: bool = False
) -> list[Path]:
    """Write `model` of a run to the folder `out`, and return the files. If it fails, `out` is as it was before."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not exported.is_export(out))):
        raise UserError(f"{out} exists and is not an export; nothing was overwritten: give another --out")
    make_folder(out.parent)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        made = Path(folder) / out.name
        names = written(run, model, made, safetensors=safetensors, state_dict=state_dict, onnx=onnx)
        make_folder(out)
        for name in names:
            (made / name).replace(out / name)
    return [out / name for name in names if name != CUSTOM_MODELS]


def written(run: SavedRun, model: str, out: Path, *, safetensors: bool, state_dict: bool, onnx: bool) -> list[str]:
    """Write all files to a new folder; return their names, with the one by which a folder is an export last."""
    thetas = run.thetas(model)
    theta = replicas.stack(thetas) if run.config.replicated else thetas[0]
    parts = {"theta": theta, "phi": run.phi(model), "buffers": run.buffers(model)}
    tensors = {f"{part}.{name}": p for part, tree in parts.items() for name, p in tree.items()}
    formats = [name for name, wanted in ((exported.SAFE, safetensors), (exported.STATE_DICT, state_dict)) if wanted]
    places = {name: None for name in ("data", "cache") if run.config.get(name) is not None}
    config = run.config.replaced(device="cpu", **places)
    facts = {
        "recipe": config.recipe, "method": config.method.kind, "model_kind": config.model.kind, "model": model,
        "step": run.step_of(model), "shape": list(run.shape), "image_shape": run.image_shape,
        "replicas": config.optimisation.names(),
        "parameters": sum(p.numel() for tree in (parts["theta"], parts["phi"]) for p in tree.values()),
        "parent": parent.read(run.folder), "versions": versions(),
    }  # fmt: skip
    if run.posterior is not None and not config.replicated and not run.is_grbm and not config.model.generates:
        tensors["means"] = posterior_means(run, model, min(KEPT_MEANS, len(run.dataset.train)), seed=0)
    exported.write(out, tensors | {"extent": run.extent}, facts, formats)
    write_config(config, out)
    write_atomic(out / exported.CARD, card(run, model, facts, out.name).encode())
    files = [*formats, "config.json", exported.CARD]
    if (run.folder / CUSTOM_MODELS).is_file():
        write_atomic(out / CUSTOM_MODELS, (run.folder / CUSTOM_MODELS).read_bytes())
        files.append(CUSTOM_MODELS)
    if onnx:
        onnx_energy(run, model, out / exported.ONNX)
        files.append(exported.ONNX)
    return [*files, exported.FACTS]


class EnergyGraph(nn.Module):
    """The energy as a graph of plain operators: F(v) where it is closed, E(v, h) otherwise."""

    def __init__(self, run: SavedRun, model: str):
        super().__init__()
        self.net = copy.deepcopy(run.energy)
        self.net.load_state_dict(run.thetas(model)[0], assign=True)  # the net itself is on the meta device

    def forward(self, v: Tensor, h: Tensor | None = None) -> Tensor:
        net: Any = self.net
        return net.free_energy(v) if h is None else net.energy(v, h)


def onnx_energy(run: SavedRun, model: str, path: Path) -> None:
    """energy.onnx: inputs v [batch, ...] (and h [batch, H] where p(v) is not closed), output the energy [batch]."""
    try:
        import onnx  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
        import onnxscript  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        raise UserError("onnx and onnxscript are not installed; pip install 'eblvm[onnx]'") from None
    if run.config.model.generates:
        raise UserError(f"model {run.config.model.kind!r} keeps its energy in its method; ONNX is for the other models")
    graph = EnergyGraph(run, model).eval()
    v = torch.zeros(2, *run.shape, dtype=getattr(torch, run.config.running.dtype))
    inputs = (v,) if hasattr(run.energy, "free_energy") else (v, torch.zeros(2, run.config.model.latent, dtype=v.dtype))
    batch = torch.export.Dim("batch")
    # torch.export reads the old switch and fails where a run has set the new ones; this makes them agree.
    torch.backends.cudnn.allow_tf32 = run.config.model.precision == "tf32"
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph, inputs, path, dynamo=True, input_names=["v", "h"][: len(inputs)], output_names=["energy"],
            dynamic_shapes=tuple({0: batch} for _ in inputs), external_data=False, verbose=False,
        )  # fmt: skip


def card(run: SavedRun, model: str, facts: dict[str, Any], name: str) -> str:
    """The model card: what it is, how it was made, how good it is, how to load it."""
    config = run.config
    figures: dict[str, Any] = {}
    rows = []
    with suppress(UserError):  # not evaluated
        figures = read_evaluation(run.folder)
    if (figures.get("model"), figures.get("step")) == (model, facts["step"]):
        spread = figures["deviation"] if config.replicated else {}
        for figure, value in figures["mean"].items():
            shown = value if isinstance(value, str) else f"{value:.6g}"
            rows.append(f"| {figure} | {shown}" + (f" ± {spread[figure]:.2g} |" if spread.get(figure) else " |"))
    lines = [
        "---", "library_name: eblvm", "tags: [energy-based-model, latent-variable-model, score-matching]", "---",
        f"# {name}", "",
        "An energy-based latent variable model, p(v, h) ~ exp(-E(v, h)), trained by eblvm: recipe "
        f"`{config.recipe}`, method `{config.method.kind}`, model `{config.model.kind}`, {facts['parameters']:,} "
        f"parameters, its {model} weights at step {facts['step']}.", "",
        "```python", "import eblvm", "", f'run = eblvm.load("{name}")', "run.score(v), run.sample(100)", "```", "",
        f"v is a batch of samples of shape {facts['shape']}"
        + (f", flat images of {facts['image_shape'][0]}x{facts['image_shape'][1]} pixels." if facts["image_shape"]
           else ", images in [0, 1]." if len(facts["shape"]) == 3 else "."), "",
    ]  # fmt: skip
    if config.recipe != "custom":
        command = " ".join(["eblvm train", config.recipe, *recipes.arguments(config)])
        lines += ["## How it was made", "", f"`{command}`", ""]
    if origin := facts["parent"]:
        lines += [f"It started from another run: recipe `{origin['recipe']}`, method `{origin['method']}`, its "
                  f"{origin['model']} weights at step {origin['step']}.", ""]  # fmt: skip
    if config.replicated:
        lines += ["It has replicas, in this order: " + ", ".join(facts["replicas"]) + ".", ""]
    table = ["| figure (`eblvm eval`) | value |", "|---|---:|", *rows] if rows else ["Not evaluated yet: `eblvm eval`."]
    made = ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if k != "kernels")
    return "\n".join([*lines, "## Figures", "", *table, "", f"Versions: {made}.", "", LICENCE_LINE, ""])
