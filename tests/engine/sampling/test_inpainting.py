"""Known entries are held, the others follow their conditional distribution; a run's chains say how they went."""

import json
from pathlib import Path

import pytest
import torch

from eblvm.engine.cli import main
from eblvm.engine.evaluation.image_sets import read_images
from eblvm.engine.runs.saved import SavedRun
from eblvm.engine.sampling.inpainting import KNOWN, known_pixels
from eblvm.engine.sampling.langevin import langevin
from eblvm.kernels.philox import Key


def test_held_entries_condition_the_others() -> None:
    """v ~ N(0, P^-1) with v_0 held at 1.5: v_1 ~ N(-P_01/P_11 1.5, 1/P_11), its variance by the discrete dynamics."""
    P = torch.tensor([[2.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    n, e = 20_000, 0.3
    truth = torch.tensor([1.5, 0.0], dtype=torch.float64).expand(n, 2)
    held = (torch.tensor([True, False]), truth)
    (v,) = langevin(lambda x: (-x[0] @ P,), (truth,), Key(0, 0), [1.0] * 200, e, held=held)
    assert (v[:, 0] == 1.5).all()
    variance = 1 / (1 - e**2 / 4)
    assert float(v[:, 1].mean()) == pytest.approx(-0.9 * 1.5, abs=5 * (variance / n) ** 0.5)
    assert float(v[:, 1].var()) == pytest.approx(variance, abs=5 * variance * (2 / n) ** 0.5)


def test_halves_make_a_whole() -> None:
    masks = {known: known_pixels((1, 8, 8), known) for known in KNOWN}
    assert (masks["top"] ^ masks["bottom"]).all()
    assert (masks["left"] ^ masks["right"]).all()
    assert masks["top"][0, 0].all()
    assert masks["left"][0, :, 0].all()


def test_a_run_inpaints_and_writes_pictures(deep: Path, tmp_path: Path) -> None:
    command = ["sample", str(deep), "--kind", "inpainting", "--known", "left", "--count", "3", "--steps", "6"]
    assert main([*command, "--png", str(tmp_path / "png")]) == 0
    v = torch.load(deep / "samples-inpainting.pt", weights_only=True)
    truth = SavedRun.open(deep).dataset.test[:3]
    assert v.shape == (6, 1, 8, 8)
    assert torch.equal(v[0::2, ..., :4], truth[..., :4])
    assert torch.equal(v[1::2, ..., :4], truth[..., :4])
    assert not torch.equal(v[1::2, ..., 4:], truth[..., 4:])
    assert (v[0::2, ..., 4:] == 0.5).all()
    written = read_images(tmp_path / "png", (1, 8, 8))
    assert torch.equal(written, (v.clamp(0, 1) * 255).round().byte())


@pytest.mark.parametrize(("kind", "shape"), [("posterior", (4, 3)), ("joint", (4, 1, 8, 8)), ("given-h", (4, 1, 8, 8))])
def test_a_run_has_exact_chains(
    kind: str, shape: tuple[int, ...], deep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sample", str(deep), "--sampler", "hmc", "--kind", kind, "--count", "4", "--steps", "10"]
    assert main([*command, "--step-size", "0.01", "--leapfrog", "2"]) == 0
    said = capsys.readouterr().out
    assert "hmc: acceptance 0." in said or "hmc: acceptance 1.00" in said
    assert "R-hat" in said
    facts = json.loads((deep / f"samples-{kind}.json").read_text())
    assert facts["leapfrog"] == 2
    assert 0 < facts["acceptance"] <= 1
    assert facts["draws"] == 20
    assert torch.load(deep / f"samples-{kind}.pt", weights_only=True).shape == shape


def test_mistakes(deep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (["--sampler", "nuts"], "unknown sampler 'nuts'; valid: generator, gibbs, hmc, mala, inpainting, langevin"),
        (["--sampler", "mala", "--kind", "marginal"], "use joint or given-h or posterior"),
        (["--sampler", "hmc", "--step-size", "-1"], "expected a positive number"),
        (["--kind", "inpainting", "--known", "middle"], "unknown known 'middle'; valid: top, bottom"),
    ):
        assert main(["sample", str(deep), "--count", "2", "--steps", "2", *words]) == 2
        assert expected in capsys.readouterr().err
