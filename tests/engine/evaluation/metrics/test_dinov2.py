"""DINOv2 by its published equations: loops over tokens, heads and patches in float64; and others' code."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import eblvm
from eblvm.engine.cli import main
from eblvm.engine.errors import UserError
from eblvm.engine.evaluation.metrics import dinov2
from eblvm.kernels import philox
from eblvm.kernels.philox import Key

WIDTH, DEPTH, GRID = 128, 2, 3


def weights(width: int = WIDTH, depth: int = DEPTH, grid: int = GRID) -> dict[str, Tensor]:
    shapes = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 1 + grid**2, width),
        "mask_token": (1, width),
        "patch_embed.proj.weight": (width, 3, 14, 14),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
    }
    for i in range(depth):
        for name, rows, columns in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 4 * width, width),
            ("mlp.fc2", width, 4 * width),
        ):
            shapes[f"blocks.{i}.{name}.weight"], shapes[f"blocks.{i}.{name}.bias"] = (rows, columns), (rows,)
        for name in ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "ls1.gamma", "ls2.gamma"):
            shapes[f"blocks.{i}.{name}"] = (width,)
    found = {name: 0.05 * philox.normal(Key(7, i), 0, 1, shape)[0] for i, (name, shape) in enumerate(shapes.items())}
    for name, value in found.items():
        if value.dim() == 1:  # biases, norms and LayerScale's gammas, which are not small here
            value.mul_(8).add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)
    return found


def cubic(t: float) -> float:
    """Keys' kernel with a = -0.75, which is torch's bicubic."""
    t, a = abs(t), -0.75
    if t <= 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * (t**3 - 5 * t**2 + 8 * t - 4) if t < 2 else 0.0


def positions_by_hand(embedding: np.ndarray, grid: int, side: int) -> np.ndarray:
    """[1 + side^2, D]: output i is at input place (i + 1/2) / scale - 1/2 with scale = (side + 0.1) / grid."""
    scale = (side + 0.1) / grid
    patches, out = embedding[1:].reshape(grid, grid, -1), np.zeros((side, side, embedding.shape[1]))
    for i in range(side):
        for j in range(side):
            y, x = ((place + 0.5) / scale - 0.5 for place in (i, j))
            for p in range(math.floor(y) - 1, math.floor(y) + 3):
                for q in range(math.floor(x) - 1, math.floor(x) + 3):
                    inside = patches[min(max(p, 0), grid - 1), min(max(q, 0), grid - 1)]
                    out[i, j] += cubic(y - p) * cubic(x - q) * inside
    return np.concatenate([embedding[:1], out.reshape(side**2, -1)])


def by_hand(params: dict[str, Tensor], image: Tensor) -> np.ndarray:
    p = {name: value.double().numpy() for name, value in params.items()}
    x, side, grid = image.double().numpy(), image.shape[-1] // 14, math.isqrt(p["pos_embed"].shape[1] - 1)

    def norm(v: np.ndarray, name: str) -> np.ndarray:
        return (v - v.mean()) / math.sqrt(v.var() + 1e-6) * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(v: np.ndarray, name: str) -> np.ndarray:
        return p[f"{name}.weight"] @ v + p[f"{name}.bias"]

    tokens = [p["cls_token"][0, 0]]
    for i in range(side):
        for j in range(side):
            patch = x[:, 14 * i : 14 * i + 14, 14 * j : 14 * j + 14].ravel()
            kernel = p["patch_embed.proj.weight"].reshape(-1, patch.size)
            tokens.append(kernel @ patch + p["patch_embed.proj.bias"])
    where = p["pos_embed"][0] if side == grid else positions_by_hand(p["pos_embed"][0], grid, side)
    tokens = [token + place for token, place in zip(tokens, where, strict=True)]
    width = len(tokens[0])
    for block in range(sum(name.endswith("ls1.gamma") for name in p)):
        b = f"blocks.{block}."
        q, k, v = zip(*(np.split(linear(norm(t, b + "norm1"), b + "attn.qkv"), 3) for t in tokens), strict=True)
        attended = []
        for i in range(len(tokens)):
            heads = []
            for head in range(width // 64):
                part = slice(64 * head, 64 * head + 64)
                scores = np.array([q[i][part] @ other[part] / 8 for other in k])  # sqrt(64)
                chances = np.exp(scores - scores.max())
                chances /= chances.sum()
                heads.append(sum(chance * other[part] for chance, other in zip(chances, v, strict=True)))
            attended.append(linear(np.concatenate(heads), b + "attn.proj"))
        tokens = [t + p[b + "ls1.gamma"] * a for t, a in zip(tokens, attended, strict=True)]
        for i, t in enumerate(tokens):
            hidden = linear(norm(t, b + "norm2"), b + "mlp.fc1")
            hidden = np.array([0.5 * h * (1 + math.erf(h / math.sqrt(2))) for h in hidden])
            tokens[i] = t + p[b + "ls2.gamma"] * linear(hidden, b + "mlp.fc2")
    return norm(tokens[0], "norm")


def images(side: int, count: int = 2) -> Tensor:
    return philox.normal(Key(5, 0), 0, count, (3, side, side))


@pytest.mark.parametrize("side", [14 * GRID, 28, 70])
def test_the_equations(side: int) -> None:
    """On the grid of the embedding, on a coarser and on a finer one."""
    params = {name: value.double() for name, value in weights().items()}
    found = dinov2.features(params, images(side).double())
    expected = np.stack([by_hand(params, image) for image in images(side)])
    assert np.abs(expected[0] - expected[1]).max() > 0.1
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(importlib.util.find_spec("dinov2") is None, reason="needs the authors' code: pip install dinov2")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_authors_code() -> None:
    from dinov2.models.vision_transformer import DinoVisionTransformer

    net = DinoVisionTransformer(
        img_size=14 * GRID, patch_size=14, embed_dim=WIDTH, depth=DEPTH, num_heads=WIDTH // 64, init_values=1.0,
        block_chunks=0,
    ).eval()  # fmt: skip
    net.load_state_dict(weights())
    for side in (14 * GRID, 70):
        with torch.no_grad():
            torch.testing.assert_close(dinov2.features(weights(), images(side)), net(images(side)))


def test_what_it_sees() -> None:
    x = dinov2.prepared(torch.full((2, 3, 30, 40), 255, dtype=torch.uint8))
    assert x.shape == (2, 3, 224, 224)
    white = [(1 - mean) / std for mean, std in ((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))]
    torch.testing.assert_close(x[1, :, 100, 100], torch.tensor(white))


def test_weights_that_are_not_there_or_not_dinov2(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.delenv("EBLVM_DINOV2", raising=False)
    with pytest.raises(UserError, match=r"no DINOv2 weights are installed; copy https.*--dinov2 FILE or set EBLVM"):
        dinov2.load()
    monkeypatch.setenv("EBLVM_DINOV2", str(tmp_path / "none.pth"))
    with pytest.raises(UserError, match=r"EBLVM_DINOV2=.*none.pth does not exist"):
        dinov2.load()
    path = tmp_path / "bad.pth"
    good = weights()
    for found, sentence in (
        ([1, 2], "is no state_dict"),
        ({"x": torch.zeros(2)}, "has other names"),
        (good | {"blocks.1.mlp.fc1.weight": torch.zeros(3, 3)}, r"blocks.1.mlp.fc1.weight of shape \(3, 3\), expected"),
        ({k: v for k, v in good.items() if k != "blocks.0.ls1.gamma"}, "ls1.gamma of shape none"),
        (weights(width=96), "has width 96"),
        (good | {"register_tokens": torch.zeros(1, 4, WIDTH)}, "without registers"),
        (weights(grid=1) | {"pos_embed": torch.zeros(1, 4, WIDTH)}, "4 tokens"),
    ):
        torch.save(found, path)
        with pytest.raises(UserError, match=sentence):
            dinov2.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read as DINOv2 weights"):
        dinov2.load(path)


def test_fid_by_dinov2(tmp_path: Path, monkeypatch, capsys) -> None:
    """From the command line and from Python, with weights of a tiny ViT."""
    monkeypatch.setenv("EBLVM_CACHE", str(tmp_path / "cache"))
    torch.save(weights(depth=1), tmp_path / "tiny.pth")
    random = np.random.default_rng(0)
    for name, high in (("a", 100), ("b", 256)):
        (tmp_path / name).mkdir()
        for i in range(6):
            pixels = random.integers(0, high, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    sets = [str(tmp_path / name) for name in ("a", "b")]
    assert main(["fid", *sets, "--dinov2", str(tmp_path / "tiny.pth")]) == 0
    said = capsys.readouterr().out
    assert "12 through DINOv2" in said
    assert said.splitlines()[-1].startswith("fewer than 1024 images")
    found = eblvm.distances(*sets, features="dinov2", weights=tmp_path / "tiny.pth")
    assert f"FD-DINOv2 {found['fd_dinov2']:.4f}" in said
    assert f"precision {found['precision_dinov2']:.3f}" in said
    assert found["fd_dinov2"] > 0
    assert main(["fid", *sets, "--features", "inception", "--dinov2", "x"]) == 2
    assert "remove one of them" in capsys.readouterr().err
    with pytest.raises(UserError, match="unknown features 'clip'"):
        eblvm.distances(*sets, features="clip")
