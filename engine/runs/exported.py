"""An exported model: a folder with weights, configuration and a model card, which needs no run.

export.json          what was exported: step, model, shape of a sample, versions
config.json          the run's configuration, without paths
model.safetensors    theta.*, phi.*, buffers.*, extent (the range of the data) and, of a deep EBLVM, means (of q(h|v),
                     for samples given h); or model.pt, the same as a state dict
energy.onnx          where it was asked for
README.md            the model card
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eblvm.engine.damage import damaged
from eblvm.engine.durable import make_folder, write_atomic
from eblvm.engine.errors import UserError

FACTS, SAFE, STATE_DICT, ONNX, CARD = "export.json", "model.safetensors", "model.pt", "energy.onnx", "README.md"
FORMAT = 1
PARTS = ("theta", "phi", "buffers")


def is_export(folder: Path) -> bool:
    return (folder / FACTS).is_file()


def read(folder: Path) -> dict[str, Any]:
    """The exported model as the payload of a checkpoint: its weights are the `last` ones of a run."""
    path = folder / FACTS
    with damaged(path, "is damaged", "copy it again"):
        facts = json.loads(path.read_text())
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise UserError(f"{path} has another format than {FORMAT}; use the version of eblvm that wrote it")
    tensors = read_tensors(folder, facts.get("weights", {}))
    tree: dict[str, Any] = {part: {} for part in PARTS}
    for name, p in tensors.items():
        part, _, rest = name.partition(".")
        if part in tree:
            tree[part][rest] = p
    state = {**tree, "theta_opt": {}, "phi_opt": {}, "chain": {}, "ema": {}, "scale": {}}
    return {
        "step": facts["step"], "best": {}, "state": state, "extent": tensors["extent"],
        "means": tensors.get("means"), "image_shape": facts["image_shape"],
    }  # fmt: skip


def read_tensors(folder: Path, digests: dict[str, str]) -> dict[str, Tensor]:
    """The weights of whichever file is there, if they are those that were written."""
    path = next((folder / name for name in (SAFE, STATE_DICT) if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"{folder} has neither {SAFE} nor {STATE_DICT}; copy the exported folder again")
    if hashlib.sha256(path.read_bytes()).hexdigest() != digests.get(path.name):
        raise UserError(f"{path} is damaged (its SHA-256 does not match {FACTS}); copy it again")
    with damaged(path, "cannot be loaded", "copy it again"):
        if path.name == STATE_DICT:
            return torch.load(path, weights_only=True, map_location="cpu")
        # Copied: where a file puts a tensor in memory, products would round by the other tensors that it has.
        return {name: t.clone() for name, t in safetensors().load_file(path).items()}


def safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise UserError("safetensors is not installed; pip install safetensors, or use --state-dict") from None
    return safetensors.torch


def write(folder: Path, tensors: dict[str, Tensor], facts: dict[str, Any], formats: list[str]) -> None:
    """The weights in `formats` (of SAFE and STATE_DICT), then the facts with their digests."""
    make_folder(folder)
    tensors = {name: p.detach().cpu().contiguous() for name, p in tensors.items()}
    digests = {}
    for name in formats:
        path = folder / name
        if name == SAFE:
            content = safetensors().save(tensors, {"format": "pt"})
        else:
            buffer = io.BytesIO()
            torch.save(tensors, buffer)
            content = buffer.getvalue()
        write_atomic(path, content)
        digests[name] = hashlib.sha256(content).hexdigest()
    facts = {"format": FORMAT, **facts, "weights": digests}
    write_atomic(folder / FACTS, (json.dumps(facts, indent=2) + "\n").encode())
