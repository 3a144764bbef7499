"""DINOv2 features of images (Oquab et al. 2023), for FD-DINOv2 (Stein et al. 2023), from the published weights.

The file is the one that Meta publishes, a state_dict: `--dinov2 FILE`, $EBLVM_DINOV2, or where torch.hub keeps it. Its
shapes say which ViT it is. Images are resized to 224x224 (bicubic, with antialiasing, as Pillow does), normalised by
ImageNet's colours, and seen as 16x16 patches of 14 pixels; the feature is the class token after the last norm.
"""

import hashlib
import math
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from eblvm.engine.damage import damaged
from eblvm.engine.errors import UserError, printable
from eblvm.engine.evaluation.metrics.extractor import Extractor
from eblvm.engine.types import Params

SIDE, PATCH, HEAD = 224, 14, 64  # pixels of an image and of a patch; features of an attention head, in every ViT of it
EPS = 1e-6  # of its norms
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = {384: "ViT-S/14", 768: "ViT-B/14", 1024: "ViT-L/14"}
VARIABLE, FILE = "EBLVM_DINOV2", "dinov2_vitl14_pretrain.pth"
WHERE = f"https://dl.fbaipublicfiles.com/dinov2/dinov2_vitl14/{FILE}"


def load(path: Path | None = None, device: str = "cpu") -> Extractor:
    path = path or find()
    with damaged(path, "cannot be read as DINOv2 weights", f"copy it again from {WHERE}"), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)  # what is loaded is what was hashed
        state = torch.load(file, weights_only=True, map_location=device)
    params = checked(state, path)
    width = params["norm.weight"].numel()
    name = f"DINOv2 {NAMES.get(width, f'of width {width}')}"
    return Extractor("dinov2", name, digest, width, lambda images: features(params, prepared(images).to(device)))


def find() -> Path:
    """The installed file."""
    given = os.environ.get(VARIABLE)
    path = Path(given) if given else Path(torch.hub.get_dir()) / "checkpoints" / FILE
    if not path.is_file():
        missing = f"{VARIABLE}={given} does not exist" if given else "no DINOv2 weights are installed"
        raise UserError(f"{missing}; copy {WHERE} (1.2 GB), and give --dinov2 FILE or set {VARIABLE}")
    return path


def checked(state: object, path: Path) -> Params:
    """The parameters that are read, with every shape that the first ones ask for."""
    expected = "expected the state_dict of a DINOv2 ViT-S, B or L/14 without registers"
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{printable(path)} is no state_dict, {expected}")
    try:
        width = state["norm.weight"].numel()
        tokens = state["pos_embed"].shape[1]
        depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    except (KeyError, IndexError, ValueError):
        raise UserError(f"{printable(path)} has other names, {expected}") from None
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, tokens, width),
        "patch_embed.proj.weight": (width, 3, PATCH, PATCH),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for block in (f"blocks.{i}." for i in range(depth)):
        linear = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        linear |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
        for name, (rows, columns) in linear.items():
            shapes |= {f"{block}{name}.weight": (rows, columns), f"{block}{name}.bias": (rows,)}
        shapes |= {f"{block}{norm}.{part}": (width,) for norm in ("norm1", "norm2") for part in ("weight", "bias")}
        shapes |= {f"{block}{scale}.gamma": (width,) for scale in ("ls1", "ls2")}
    for name, shape in shapes.items():
        got = tuple(state[name].shape) if name in state else "none"
        if got != shape:
            raise UserError(f"{printable(path)} has {name} of shape {got}, expected {shape}; {expected}")
    if width % HEAD or math.isqrt(tokens - 1) ** 2 != tokens - 1 or "register_tokens" in state:
        raise UserError(f"{printable(path)} has width {width} and {tokens} tokens, {expected}")
    return {name: state[name].float() for name in shapes}


def prepared(images: Tensor) -> Tensor:
    """uint8 [n, 3, height, width] -> what DINOv2 sees, [n, 3, 224, 224]."""
    rows = [
        np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC))
        for image in images.cpu().permute(0, 2, 3, 1).numpy()
    ]
    x = torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (x - mean) / std


def features(params: Params, x: Tensor) -> Tensor:
    """Images [n, 3, S, S] -> the class token after the last norm, [n, width]. A block is x + gamma_1
    attention(norm_1(x)), then x + gamma_2 mlp(norm_2(x))."""
    width, n = params["norm.weight"].numel(), len(x)
    patches = F.conv2d(x, params["patch_embed.proj.weight"], params["patch_embed.proj.bias"], stride=PATCH)
    side = patches.shape[-1]
    tokens = torch.cat([params["cls_token"].expand(n, -1, -1), patches.flatten(2).mT], 1)
    tokens = tokens + positions(params["pos_embed"], side)
    depth = sum(name.endswith("ls1.gamma") for name in params)
    for block in (f"blocks.{i}." for i in range(depth)):

        def linear(name: str, v: Tensor, block: str = block) -> Tensor:
            return F.linear(v, params[f"{block}{name}.weight"], params[f"{block}{name}.bias"])

        def norm(name: str, v: Tensor, block: str = block) -> Tensor:
            return F.layer_norm(v, (width,), params[f"{block}{name}.weight"], params[f"{block}{name}.bias"], EPS)

        qkv = linear("attn.qkv", norm("norm1", tokens)).view(n, -1, 3, width // HEAD, HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # [n, heads, tokens, HEAD] each
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, width)
        tokens = tokens + params[f"{block}ls1.gamma"] * linear("attn.proj", attended)
        hidden = F.gelu(linear("mlp.fc1", norm("norm2", tokens)))
        tokens = tokens + params[f"{block}ls2.gamma"] * linear("mlp.fc2", hidden)
    return F.layer_norm(tokens[:, 0], (width,), params["norm.weight"], params["norm.bias"], EPS)


def positions(embedding: Tensor, side: int) -> Tensor:
    """The embedding [1, 1 + M^2, D] of M x M patches for side x side of them: bicubic, by a scale of (side + 0.1) / M.
    The 0.1 is the authors', against a floor of rounding errors; their scale is used and not the one of the sizes."""
    grid = math.isqrt(embedding.shape[1] - 1)
    if grid == side:
        return embedding
    scale = (side + 0.1) / grid
    patches = embedding[:, 1:].view(1, grid, grid, -1).permute(0, 3, 1, 2)
    resized = F.interpolate(patches, scale_factor=(scale, scale), mode="bicubic")
    return torch.cat([embedding[:, :1], resized.flatten(2).mT], 1)
