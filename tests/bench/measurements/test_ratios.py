"""`eblvm bench SUITE`: rows, record, errors, and no speed after a red gate."""

import json
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eblvm.bench.measurements import kernels, ratios
from eblvm.bench.tools import agreement, records, registry
from eblvm.bench.tools.agreement import AgreementError
from eblvm.engine import cli
from eblvm.engine.errors import UserError
from eblvm.kernels import backends


@pytest.fixture
def small_suites(monkeypatch: pytest.MonkeyPatch) -> None:
    full = registry.grbm

    def grbm() -> list[registry.Case]:
        return [replace(c, config=c.config.replaced(batch=10, latent=6), shape=(8,)) for c in full()[::5]]

    monkeypatch.setattr(registry, "grbm", grbm)


def test_grbm_rows_cover_the_table_of_the_paper() -> None:
    names = [case.name for case in registry.cases("grbm")]
    assert len(names) == len(set(names))
    for noise, divergence, unroll in (("fresh", "kl", "adam"), ("shared", "kl-exact", "sgd")):
        for N, K in [(N, 5) for N in (0, 1, 5, 10)] + [(5, K) for K in (1, 2, 5, 10)]:
            assert f"method=bidsm noise={noise} divergence={divergence} unroll={unroll} N={N} K={K}" in names


@pytest.mark.usefixtures("small_suites")
def test_bench_writes_a_record(run: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("bench", "grbm", "--rounds", "5", "--json", str(tmp_path / "f.json"))
    result = records.read(tmp_path / "f.json", ratios.SCHEMA)
    assert {"machine", "versions", "commit", "rows"} <= set(result)
    for row in result["rows"]:
        assert all(re.fullmatch(r"\w+=[\w.-]+", pair) for pair in row["case"].split(" "))
        assert row["ratio"] == pytest.approx(row["baseline_ms"] / row["engine_ms"])
        assert min(row[name] for name in ("engine_ms", "baseline_ms", "floor_ms", "peak_mib")) > 0
        assert (row["twin_ms"] is not None) == ("unroll=sgd" in row["case"])
        # The fused step keeps its own tape, and none without an unroll.
        assert (row["saved_mib"] > 0) == ("N=0" not in row["case"])
        assert row["floor_ms"] < row["engine_ms"]
    assert result["rows"][0]["case"] in capsys.readouterr().out
    text = (tmp_path / "f.json").read_text()
    assert str(Path.home()) not in text
    assert str(records.SOURCE) not in text
    assert json.dumps(socket.gethostname()) not in text


@pytest.mark.usefixtures("small_suites")
def test_a_folder_names_the_record_itself(run: Callable[..., None], tmp_path: Path) -> None:
    run("bench", "grbm", "--rounds", "1", "--json", str(tmp_path))
    (path,) = tmp_path.iterdir()
    result = records.read(path, ratios.SCHEMA)
    assert path.name == "grbm.jsonl"
    run("bench", "grbm", "--rounds", "1", "--json", str(tmp_path))
    first, second = records.history(path)
    assert first == result | {"file": "grbm.jsonl"}
    assert second["rows"] != first["rows"]


@pytest.mark.usefixtures("small_suites")
def test_a_red_gate_reports_no_speed(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(agreement, "TOLERANCE", -1.0)
    with pytest.raises(SystemExit) as stop:
        run("bench", "grbm", "--json", str(tmp_path / "f.json"))
    assert stop.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no speed is reported" in err
    assert not (tmp_path / "f.json").exists()


@pytest.mark.long
def test_kernels_against_their_reference() -> None:
    if not any(b.op == "philox" and b.name == "native" and b.serves for b in backends()):
        pytest.skip("the native kernels are not built here")
    result = ratios.run("kernels", 1, "cpu", compile=False, progress=False)
    assert {row["case"].split()[0] for row in result["rows"]} == {f"op={row.op}" for row in kernels.rows()}
    slower = [row["case"] for row in result["rows"] if row["ratio"] < 0.8]  # one reading each: only a gross one counts
    assert slower == []


def test_a_kernel_with_wrong_bits_reports_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    if not any(b.op == "philox" and b.name == "native" and b.serves for b in backends()):
        pytest.skip("the native kernels are not built here")
    monkeypatch.setitem(kernels.DRAWS, "normal", kernels.DRAWS["uniform"])
    with pytest.raises(AgreementError, match="op and reference differ"):
        ratios.run("kernels", 1, "cpu", compile=False, progress=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("bench", "gbrm"), "unknown suite 'gbrm'; did you mean 'grbm'"),
        (("bench", "deep", "--compile"), "unknown option '--compile'"),
        (("bench", "bidvl", "--compile"), "unknown option '--compile'"),
        (("bench", "data", "--compile"), "unknown option '--compile'"),
        (("bench", "growth", "--device", "cuda"), "unknown option '--device'"),
        (("bench", "compare"), "needs a commit"),
        (("bench", "compare", "HEAD", "--compile"), "unknown option '--compile'"),
        (("bench", "toy", "main"), "expected one suite"),
        (("bench", "toy", "--rounds", "0"), "expected 1 or more"),
        (("bench", "toy", "--device", "cuda"), "no CUDA device"),
        (("bench", "toy", "--device", "tpu"), "got device='tpu', expected cpu or cuda"),
    ],
)
def test_bad_input_is_one_clear_sentence(run: Callable[..., None], words: tuple[str, ...], sentence: str) -> None:
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UserError, match=re.escape(sentence)):
        run(*words)


def test_a_record_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grbm-x.json"
    for text, sentence in (
        ('{"schema": "eblvm-bench/0"}', "has schema 'eblvm-bench/0', expected"),
        ("{", "valid JSON"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=sentence):
            records.read(path, ratios.SCHEMA)
    with pytest.raises(UserError, match="cannot be read"):
        records.read(tmp_path / "none.json", ratios.SCHEMA)


def test_commands_are_added_once_and_named() -> None:
    assert set(cli.commands()) - set(cli.COMMANDS) == {"bench", "profile", "reproduce"}
