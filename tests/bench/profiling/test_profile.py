"""`eblvm profile`: points of every kind of method, table, record, plot, errors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.bench.profiling import profile
from eblvm.bench.tools import records
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import arguments, recipe

DEEP = "--width 2 --latent 3 --batch 4 --rounds 1".split()


def test_profile_writes_table_record_and_plot(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, json = tmp_path / "p.png", tmp_path / "p.json"
    words = ("--N", "2,0,1", "--K", "1,3", "--best-response", "unroll", "--rounds", "1", "--batch", "10")
    run("profile", "checkerboard", *words, "--noise", "fresh", "--plot", str(plot), "--json", str(json))
    result = records.read(json, profile.SCHEMA)
    assert result["batch"] == 10
    assert result["command"] == (
        "eblvm profile checkerboard --noise fresh --N 2,0,1 --K 1,3 --best-response unroll --rounds 1 --batch 10"
    )
    assert [(row["N"], row["K"]) for row in result["rows"]] == [(0, 1), (0, 3), (1, 1), (1, 3), (2, 1), (2, 3)]
    assert min(row["step_ms"] for row in result["rows"]) > 0
    Ns, Ks, saved = profile.surface(result, "saved_mib", "N", "K")
    assert (Ns, Ks) == ([0, 1, 2], [1, 3])
    assert [row[0] for row in saved] == sorted(row[0] for row in saved)  # memory grows with N
    assert len({row[0] for row in saved}) == 3
    assert all(row[0] == row[1] for row in saved)  # and not with K
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(capsys.readouterr().out.splitlines()) == 2 + 6 + 2


def test_deep_bilevel_method_has_newton_beside_its_unroll(run: Callable[..., None], tmp_path: Path) -> None:
    json = tmp_path / "p.json"
    words = ("--small", "--N", "0,3", "--K", "1", *DEEP, "--json", str(json), "--plot", str(tmp_path / "p.svg"))
    run("profile", "mnist", *words)
    rows = records.read(json, profile.SCHEMA)["rows"]
    assert [(row["series"], row.get("N")) for row in rows] == [
        ("best_response=unroll", 0), ("best_response=unroll", 3), ("best_response=newton", None)
    ]  # fmt: skip
    none, three, newton = rows
    assert three["peak_mib"] > none["peak_mib"]
    assert three["gflop"] > none["gflop"]
    assert newton["gflop"] < three["gflop"]
    assert none["saved_mib"] == pytest.approx(
        none["recipe_saved_mib"] * 4 / 32, rel=0.25
    )  # of the recipe's batch of 32


@pytest.mark.parametrize(
    ("words", "axes"),
    [
        (("cifar10", "--small", "--method", "vages-mdsm", "--L", "2,3", "--K", "1", "--C", "0,1", *DEEP),
         ["K", "L", "C"]),
        (("cifar10", "--small", "--method", "bidvl", "--N", "0,1", "--K", "1", "--width", "2", "--posterior-width", "2",
          "--generator-width", "2", "--batch", "4", "--rounds", "1", "--checkpoint", "none,blocks"), ["N", "K"]),
        (("celeba64", "--small", "--method", "mdsm", "--checkpoint", "none,blocks", *DEEP), []),
    ],
    ids=["vages", "bidvl", "mdsm"],
)  # fmt: skip
def test_every_deep_method_has_a_profile(
    run: Callable[..., None], words: tuple[str, ...], axes: list[str], tmp_path: Path
) -> None:
    json = tmp_path / "p.json"
    run("profile", *words, "--json", str(json), "--plot", str(tmp_path / "p.png"))
    result = records.read(json, profile.SCHEMA)
    assert profile.axes_of(result) == axes
    for row in result["rows"]:
        assert all(row[figure] > 0 for figure in profile.FIGURES)
    assert (tmp_path / "p.png").exists() == bool(axes)  # one point per series leaves nothing to draw
    if not axes:
        plain, cut = result["rows"]
        assert cut["saved_mib"] < 0.5 * plain["saved_mib"]


def test_batch_is_halved_until_a_step_fits_a_cpu() -> None:
    config = recipe("cifar10")
    costs = [profile.recipe_cost(point.config) for point in profile.points(config, {"N": (0,), "K": (5,)})]
    assert profile.fitting_batch(config, costs) == 25  # 3.2 TFLOP at 100, and at most 1 is wanted
    small = recipe("cifar10", small=True)
    assert profile.fitting_batch(small, [profile.recipe_cost(small)]) == small.optimisation.batch


def test_command_of_a_record_repeats_it() -> None:
    config = recipe("freyface").replaced(compile=True, lr=(0.1, 0.2), unroll_lr=0.5, data="somewhere", N=7)
    assert arguments(config, without=("N", "K", "data")) == ["--unroll-lr 0.5", "--lr 0.1,0.2", "--compile"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("freyfaze",), "did you mean 'freyface'"),
        (("checkerboard", "--method", "dsm", "--N", "1"), "does not read --N; it is an option of"),
        (("checkerboard", "--network", "lean,published"), "does not read --network"),
        (("checkerboard", "--N", "1,-2"), "0 or more"),
        (("checkerboard", "--N", "1,x"), "expected integers"),
        (("checkerboard", "--batch", "0"), "expected an integer, 1 or more"),
        (("checkerboard", "--rounds", "0"), "expected 1 or more"),
        (("checkerboard", "--N", "1,2", "--K", "1", "--rounds", "1", "--plot", "/dev/null/p.png"), "cannot be written"),
        (("checkerboard", "--N", "1,2", "--K", "1", "--rounds", "1", "--plot", "p.xyz"), "cannot draw p.xyz"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    run: Callable[..., None], words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        run("profile", *words)
