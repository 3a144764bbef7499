"""A closed pipe ends a command quietly, a full disk behind stdout with one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "eblvm", "train", "checkerboard", "--method", "bidsm", "--help"]


def test_a_closed_pipe_ends_quietly() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(COMMAND, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert ended.stderr == ""
    assert ended.returncode == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("eblvm: cannot read or write (No space left on device)")
    assert len(ended.stderr.splitlines()) == 1
