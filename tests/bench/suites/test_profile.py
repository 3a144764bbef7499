"""`eblvm profile`: table, record, plot, errors."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eblvm.bench.suites import profile
from eblvm.bench.tools import record
from eblvm.engine.errors import UserError
from eblvm.engine.recipes import arguments, recipe


def test_profile_writes_table_record_and_plot(
    run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, json = tmp_path / "p.png", tmp_path / "p.json"
    words = ("--N", "2,0,1", "--K", "1,3", "--rounds", "1", "--batch", "10", "--noise", "fresh")
    run("profile", "checkerboard", *words, "--plot", str(plot), "--json", str(json))
    found = record.read(json, profile.SCHEMA)
    assert found["noise"] == "fresh"
    assert found["command"] == "eblvm profile checkerboard --N 2,0,1 --K 1,3 --rounds 1 --noise fresh --batch 10"
    assert [(row["N"], row["K"]) for row in found["rows"]] == [(0, 1), (0, 3), (1, 1), (1, 3), (2, 1), (2, 3)]
    assert min(row["step_ms"] for row in found["rows"]) > 0
    Ns, Ks, saved = profile.surface(found, "saved_mib")
    assert (Ns, Ks) == ([0, 1, 2], [1, 3])
    assert [row[0] for row in saved] == sorted(row[0] for row in saved)  # memory grows with N
    assert len({row[0] for row in saved}) == 3
    assert all(row[0] == row[1] for row in saved)  # and not with K
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(capsys.readouterr().out.splitlines()) == 1 + 6 + 2


def test_command_of_a_record_repeats_it() -> None:
    config = recipe("freyface").replaced(compile=True, lr=(0.1, 0.2), unroll_lr=0.5, data="somewhere", N=7)
    assert arguments(config, without=("N", "K", "data")) == ["--unroll-lr 0.5", "--lr 0.1,0.2", "--compile"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("freyfaze",), "did you mean 'freyface'"),
        (("checkerboard", "--method", "dsm"), "has no N and K"),
        (("checkerboard", "--N", "1,-2"), "0 or more"),
        (("checkerboard", "--N", "1,x"), "expected integers"),
        (("checkerboard", "--rounds", "0"), "expected 1 or more"),
        (("checkerboard", "--N", "1", "--K", "1", "--rounds", "1", "--plot", "none/p.png"), "cannot write the plot"),
        (("checkerboard", "--N", "1", "--K", "1", "--rounds", "1", "--plot", "p.xyz"), "cannot write the plot"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    run: Callable[..., None], words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=sentence):
        run("profile", *words)
