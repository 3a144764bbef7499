"""The command line: bad input gives one line that says what to do and exit code 2, and nothing is lost."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from eblvm.engine.cli import main
from eblvm.engine.selftest import kernels


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train chekerboard", "unknown recipe 'chekerboard'; did you mean 'checkerboard'"),
        ("train checkerboard --method bidsn", "unknown method 'bidsn'; did you mean 'bidsm'"),
        ("train checkerboard --unrol-lr 1", "unknown option '--unrol-lr'; did you mean '--unroll-lr'"),
        ("trian checkerboard", "unknown command 'trian'; did you mean 'train'"),
        ("train checkerboard --N -1", "got N=-1, expected 0 or more"),
        ("train checkerboard --N many", "got --N many, expected an integer"),
        ("train checkerboard --lr 0", "got lr=(0.0,), expected a positive number"),
        ("train checkerboard --batch 100000000", "expected at most the 60000 training samples"),
        ("train checkerboard --device cuda", "torch sees no CUDA device"),
        ("train checkerboard --divergence fischer", "unknown divergence 'fischer'; did you mean 'fisher'"),
        (
            "train checkerboard --divergence fisher",
            "needs continuous h, which model 'grbm' does not have; use 'kl",
        ),
        (
            "train checkerboard --posterior conv",
            "needs images, which model 'grbm' does not have; use 'linear' or",
        ),
        ("train checkerboard --small", "recipe 'checkerboard' is small already"),
        ("train checkerboard --model custom", "see docs/models.md"),
        ("train mnist", "recipe 'mnist' needs the data set; give --data PATH"),
        ("train mnist --data nowhere.npz", "nowhere.npz does not exist"),
        ("train celeba64 --data .", "has no .jpg or .png pictures"),
        ("train digits --model deep --N 1 --activation relu", "N=1 needs a twice differentiable energy, 'relu' has no"),
        ("train digits --model deep --depth 13", "got depth=13, expected one of 12, 18, 24"),
        ("train digits --model deep --method cd", "model 'deep' has neither"),
        (
            "train digits --model deep --posterior linear",
            "model 'deep' does not have; use 'conv' or another --model",
        ),
        (
            "train checkerboard --model mlp --divergence kl-exact",
            "model 'mlp' does not have; use 'fisher' or 'kl' or",
        ),
        ("train digits --model deep --N 1 --unroll-optimizer sgd", "give --unroll-lr, or use Adam"),
        ("train digits --model deep --checkpoint all --compile", "with --compile use --memory-budget"),
        ("train digits --model deep --checkpoint all --method bissm", "use --checkpoint none"),
        ("train digits --model deep --precision bf16 --dtype float64", "precision 'bf16' is for dtype float32"),
        ("train digits --model deep --memory-budget 0.5", "add --compile"),
        ("train digits --model deep --unroll-memory compiled", "unknown unroll-memory 'compiled'"),
        ("train digits --model deep --memory-budget 2", "got memory-budget=2.0, expected a number above 0, at most 1"),
        ("train checkerboard --method vages-dsm --L 1", "use --L 2 or more, or --covariance none"),
        ("train checkerboard --method vages-ksd --batch 99", "got batch=99, expected an even number"),
        ("train checkerboard --method vages-dsm --C 1", "does not read --C; it needs a continuous h"),
        ("train digits --model deep --method vages-mdsm --control-variate", "use --C 0 or --no-control-variate"),
        ("train digits --model deep --method vages-mdsm --langevin-noise -1", "expected 0 or more"),
        ("train digits --model deep --method vages-ssm --checkpoint all", "use --checkpoint none"),
        ("train checkerboard --method ksd --kernel-width 0", "expected a positive number"),
        ("train checkerboard --method bidvl", "needs a model with a generator, got model 'grbm'"),
        ("train digits --model sn-conv", "method 'bidsm' trains no generator, got model 'sn-conv'"),
        ("train celeba128", "add --method bidvl"),
        ("train digits --method bidvl --small", "recipe 'digits' is small already"),
        ("train digits --method bidvl --K 0", "got K=0, expected 1 or more"),
        ("train digits --method bidvl --energy joint", "add --opposite none"),
        ("train digits --method bidvl --divergence kl", "no term is left that trains the encoder"),
        ("train digits --method bidvl --upper hinge", "add --output real"),
        ("train digits --method bidvl --opposite ofset", "did you mean 'offset'"),
        ("train digits --method bidvl --ratio 0", "got ratio=0.0, expected a positive number"),
        ("train digits --method bidvl --model sn-resnet", "expected square images of 32, 128 pixels"),
        ("train digits --method bidvl --checkpoint all", "valid: auto, none, blocks"),
        ("train digits --method bidvl --checkpoint blocks --compile", "checkpoint is for the eager, single run"),
        ("train digits --method bidvl --micro-batch 8 --compile", "micro-batch is for the eager, single run"),
        ("train digits --method bidvl --micro-batch 8 --replicas 2", "micro-batch is for the eager, single run"),
        ("train digits --method bidvl --precision fp16 --compile", "use bf16, or remove --compile"),
        (
            "train digits --method bidvl --N 1 --unroll-memory recompute --compile",
            "rebuilds a graph that a compiled step does not have",
        ),
        (
            "train digits --method bidvl --unroll-memory recompute --channels-last --dtype float64",
            "cannot be unrolled twice or recomputed; remove --channels-last",
        ),
        (
            "train digits --method bidvl --unroll-optimizer sgd",
            "does not read --unroll-optimizer; it is an option of",
        ),
        ("train checkerboard --device foo", "got device='foo', expected cpu or cuda"),
        ("train checkerboard --seed 9223372036854775807", "expected seeds below 2^63"),
        ("train checkerboard --beta1 1", "got beta1=1.0, expected 0 to below 1"),
        ("train checkerboard --meth dsm", "unknown option '--meth'; did you mean '--method'"),
        (
            "train checkerboard --unroll-optimizer sgd --divergence kl",
            "give --divergence kl-exact, or a step size --unroll-lr",
        ),
        ("eval nowhere --chains 1", "got --chains 1, expected 2 or more"),
        ("sample nowhere --count 0", "got --count 0, expected 1 or more"),
        ("doctor --json nowhere/x.json", "give a path that can be read and written"),
        ("train checkerboard --posterior exact", "use --N 0 --K 0"),
        ("train checkerboard --posterior mlp --unroll-optimizer sgd", "a step size --unroll-lr"),
        ("train checkerboard --method bimdsm --sigma-range 1", "expected two numbers"),
        ("train checkerboard --sigma-range 1,2", "does not read --sigma-range; it is an option of method 'bimdsm'"),
        ("train checkerboard --latent-samples 2", "of method 'vnce' and divergence 'fisher' or 'kl'"),
        ("train checkerboard --method bissm --noise fresh", "it needs a loss that perturbs the data"),
        ("train checkerboard --ema 2", "got ema=2.0, expected above 0, below 1"),
        ("train freyface", "needs the data set; give --data PATH"),
        ("train freyface --data nowhere.npz", "nowhere.npz does not exist"),
        ("eval nowhere", "nowhere is not a run folder"),
        ("sample nowhere", "nowhere is not a run folder"),
        ("report nowhere", "nowhere is not a run folder"),
    ],
)
def test_bad_input(arguments: str, sentence: str, capsys, tmp_path: Path, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    assert sentence in failure(capsys, *arguments.split())
    assert list(tmp_path.iterdir()) == []


def test_bad_data_files(capsys, tmp_path: Path) -> None:
    whole = tmp_path / "whole.npz"
    np.savez(whole, x=np.zeros((1965, 28, 20), np.uint8))
    truncated = tmp_path / "truncated.npz"
    truncated.write_bytes(whole.read_bytes()[:1000])
    shape = tmp_path / "shape.npz"
    np.savez(shape, x=np.zeros((10, 28, 20), np.uint8))
    key = tmp_path / "key.npz"
    np.savez(key, faces=np.zeros(3))
    out = tmp_path / "out"
    for path, sentence in [
        (truncated, "cannot be read as .npz"),
        (shape, "has 10 faces, expected Frey face's 1965"),
        (key, "got keys faces, expected 'x'"),
    ]:
        error = failure(capsys, "train", "freyface", "--data", str(path), "--out", str(out))
        assert str(path) in error
        assert sentence in error
    assert not out.exists()


def test_train_eval_sample_report(capsys, tmp_path: Path) -> None:
    out, figures = tmp_path / "run", tmp_path / "figures.json"
    options = "--steps 40 --N 1 --K 1 --unroll-optimizer sgd --divergence kl-exact --validations 2 --out".split()
    assert main(["train", "checkerboard", *options, str(out)]) == 0
    assert main(["eval", str(out), "--json", str(figures)]) == 0
    facts = json.loads(figures.read_text())
    assert facts["likelihood"] == "exact"
    assert facts["mean"]["test_log_likelihood"] < 0.693  # log 2 is the best possible
    assert (out / "density.png").stat().st_size > 1000
    assert main(["eval", str(out), "--ais", "--chains", "500", "--temperatures", "500", "--json", str(figures)]) == 0
    by_ais = json.loads(figures.read_text())["mean"]
    error = abs(by_ais["log_z"] - facts["mean"]["log_z"])
    assert error < 3 * by_ais["log_z_standard_error"]
    assert main(["eval", str(out), "--study", "bias"]) == 0
    bias = json.loads((out / "gradient_bias.json").read_text())["relative_bias"]
    assert bias[0][-1] < 0.5 * bias[0][0]
    assert main(["sample", str(out), "--steps", "5", "--count", "20"]) == 0
    assert (out / "samples.png").stat().st_size > 1000
    assert main(["report", str(out)]) == 0
    assert (out / "curves.png").stat().st_size > 1000
    assert "test_log_likelihood" in capsys.readouterr().out


def test_digits_trains_and_samples_images(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["train", "digits", "--method", "dsm", "--steps", "30", "--out", str(out)]) == 0
    assert main(["sample", str(out), "--steps", "3"]) == 0
    assert (out / "samples.png").stat().st_size > 1000


def test_dry_run_prints_the_configuration_and_makes_nothing(capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "checkerboard", "--lr", "1e-3,1e-2", "--dry-run"]) == 0
    assert "(0.001, 0.01)" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_doctor_names_the_backend_of_every_kernel(capsys, tmp_path: Path) -> None:
    figures = tmp_path / "doctor.json"
    assert main(["doctor", "--json", str(figures)]) == 0
    said = capsys.readouterr().out
    assert "kernel philox" in said
    assert said.splitlines()[-1] == json.loads(figures.read_text())["verdict"]
    assert re.match(r"all \d\d checks passed on the CPU\. Next: on a machine with a GPU, ", said.splitlines()[-1])
    rows = [row for row in json.loads(figures.read_text())["kernels"] if row["device"] == "cpu"]
    assert "philox" in {row["op"] for row in rows}
    for op in {row["op"] for row in rows}:
        assert [row["serves"] for row in rows if row["op"] == op].count(True) == 1, op


def test_doctor_fails_if_a_kernel_is_wrong(capsys, monkeypatch, tmp_path: Path) -> None:
    right = kernels.OPS["elu_second_order"]
    monkeypatch.setitem(
        kernels.OPS, "elu_second_order", lambda *size: right(*size)._replace(op=torch.nn.functional.softplus)
    )
    figures = tmp_path / "doctor.json"
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--json", str(figures)])
    assert ended.value.code == 1
    said = capsys.readouterr().out.splitlines()
    failed = [line for line in said if line.startswith("FAIL")]
    assert len(failed) == len(kernels.SIZES)
    assert all("elu_second_order" in line for line in failed)
    assert re.match(r"3 of \d\d checks failed on the CPU: elu_second_order", said[-1])
    assert "EBLVM_NATIVE=0" in said[-1]
    assert not all(one["passed"] for one in json.loads(figures.read_text())["findings"])


def test_help_names_every_command(capsys) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("train", "eval", "sample", "report", "profile", "bench", "doctor", "demo"):
        assert f"  {command} " in text


def test_an_interrupt_is_one_line(capsys, monkeypatch) -> None:
    def interrupted(argv: list[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eblvm.engine.cli.doctor.main", interrupted)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "eblvm: interrupted; what was saved before is kept\n"
