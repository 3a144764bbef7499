"""A native library that is missing or built for another torch: a slower PyTorch version is used, and eblvm says so
once. The threads of one that is loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eblvm.kernels.runtime.dispatch import NATIVE_LIBRARY

PATCH = """
import importlib.util, sys, warnings
from types import SimpleNamespace
real, origin = importlib.util.find_spec, {origin!r}
def find_spec(name, *rest):
    if name != "eblvm.kernels._native":
        return real(name, *rest)
    return origin and SimpleNamespace(origin=origin)
importlib.util.find_spec = find_spec
"""


def run(code: str, origin: str | None) -> subprocess.CompletedProcess[str]:
    program = PATCH.format(origin=origin) + code
    return subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, timeout=300)


def test_a_library_for_another_torch_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "_native.so").write_bytes(b"loading this would be an error")
    (tmp_path / "_native.torch").write_text("9.9.1+cpu\n")
    code = "from eblvm.kernels import backends; print({b.name for b in backends() if b.serves and b.device == 'cpu'})"
    done = run(code, str(tmp_path / "_native.so"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'reference'}"
    assert done.stderr.count("built for torch 9.9.1+cpu, this is ") == 1
    assert "--no-build-isolation" in done.stderr


def test_without_a_library_a_run_says_so_once(tmp_path: Path) -> None:
    code = "from eblvm.engine.cli import main; raise SystemExit(main({!r}.split()))"
    done = run(code.format(f"train checkerboard --method dsm --steps 3 --validations 0 --out {tmp_path / 'run'}"), None)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("native kernels are not built") == 1


@pytest.mark.skipif(NATIVE_LIBRARY is None, reason="the native library is not built")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_kernels_have_the_threads_of_torch(count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        assert torch.ops.eblvm.threads() == count
    finally:
        torch.set_num_threads(before)
