"""Two machines, as two network namespaces of this one with a link between them: rendezvous, a slow link, a cut link, a
killed node, restarts. A run finishes bitwise, or stops with one line and keeps its checkpoint.

The tests change the machine's network, so they run only as root with EBLVM_TWO_HOSTS=1 (`make two-hosts`).
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_flatten

from eblvm.engine.runs.stats import read_rows
from tests.distributed.test_torchrun import OPTIONS, newest, torchrun, wait_for, workers

pytestmark = pytest.mark.skipif(
    os.environ.get("EBLVM_TWO_HOSTS") != "1" or os.geteuid() != 0 or shutil.which("ip") is None,
    reason="'make two-hosts' runs it, as root",
)
HOSTS = ("eblvm-a", "eblvm-b")
PORT = 29511
PATIENCE_S = 8


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def link() -> Iterator[None]:
    """Create two hosts, 10.77.0.1 and 10.77.0.2, with a link between them."""
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True)
        ip("netns", "add", host)
        ip("-n", host, "link", "set", "lo", "up")
    ip("link", "add", "wire0", "netns", HOSTS[0], "type", "veth", "peer", "name", "wire0", "netns", HOSTS[1])
    for number, host in enumerate(HOSTS):
        ip("-n", host, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "wire0")
        ip("-n", host, "link", "set", "wire0", "up")
    yield
    for host in HOSTS:
        ip("netns", "del", host)


def start(number: int, out: Path, *more: str) -> "subprocess.Popen[str]":
    """Start torchrun on one of the hosts, in a process group of its own, so that a whole node can be killed."""
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"10.77.0.1:{PORT}", "--rdzv-id", "run"]
    local = ["--local-addr", f"10.77.0.{number + 1}", "--rdzv-conf", f"is_host={int(number == 0)},join_timeout=60"]
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting, *local]
    command = ["ip", "netns", "exec", HOSTS[number], *run, *more, "-m", "eblvm", *OPTIONS, "--out", str(out)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "wire0",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "EBLVM_PEER_TIMEOUT_S": str(PATIENCE_S),
    }
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def both(out: Path, *more: str) -> "list[subprocess.Popen[str]]":
    return [start(number, out, *more) for number in range(2)]


def end(nodes: "list[subprocess.Popen[str]]", patience: float = 200) -> list[str]:
    """Return each node's stderr; nodes that still run after the patience are killed."""
    said = []
    for node in nodes:
        try:
            said.append(node.communicate(timeout=patience)[1])
        except subprocess.TimeoutExpired:
            os.killpg(node.pid, signal.SIGKILL)
            said.append(node.communicate()[1] + "\nSTILL RUNNING")
    return said


def lines(said: str) -> list[str]:
    """Return eblvm's own lines of the output of torchrun and eblvm."""
    return [line for line in said.splitlines() if line.startswith("eblvm: ")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train the uninterrupted run of two processes on one host and return its folder."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    node = torchrun(folder)
    node.communicate(timeout=300)
    assert node.returncode == 0
    return folder


def expect_an_end(nodes: "list[subprocess.Popen[str]]") -> None:
    said = end(nodes)
    assert [node.returncode for node in nodes] == [0, 0], said


def expect_bitwise(whole: Path, folder: Path) -> None:
    for x, y in zip(tree_flatten(newest(whole))[0], tree_flatten(newest(folder))[0], strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    one, two = ([(r["step"], r["loss"]) for r in read_rows(f / "stats.jsonl")] for f in (folder, whole))
    assert one == two


@pytest.mark.parametrize("rate", [None, "2mbit"])
def test_two_hosts_meet_and_end_bitwise(rate: str | None, whole: Path, link: None, tmp_path: Path) -> None:
    if rate is not None:  # a slow link: a hundredth of the rate that the run could use
        slow = [
            "tc",
            "qdisc",
            "add",
            "dev",
            "wire0",
            "root",
            "tbf",
            "rate",
            rate,
            "burst",
            "32kbit",
            "latency",
            "400ms",
        ]
        subprocess.run(["ip", "netns", "exec", HOSTS[0], *slow], check=True)
    expect_an_end(both(tmp_path / "run"))
    expect_bitwise(whole, tmp_path / "run")


def test_a_cut_link_ends_both_and_the_run_goes_on(whole: Path, link: None, tmp_path: Path) -> None:
    nodes = both(tmp_path / "run")
    wait_for(tmp_path / "run", 10, nodes[0])
    ip("-n", HOSTS[0], "link", "set", "wire0", "down")
    time.sleep(PATIENCE_S + 6)
    first = end(nodes[:1], patience=60)[0]
    second = end(nodes[1:], patience=60)[0]
    assert lines(first), first
    assert lines(first)[0].startswith("eblvm: rank 0: rank 1 has not answered")
    assert any(line.startswith("eblvm: rank 1: ") for line in lines(second)), second
    assert "what was saved is kept" in lines(second)[0]
    ip("-n", HOSTS[0], "link", "set", "wire0", "up")
    expect_an_end(both(tmp_path / "run"))
    expect_bitwise(whole, tmp_path / "run")


def test_a_killed_node_is_named_and_the_run_goes_on(whole: Path, link: None, tmp_path: Path) -> None:
    nodes = both(tmp_path / "run")
    wait_for(tmp_path / "run", 10, nodes[0])
    at_work = workers(nodes[1])  # torchrun gives them process groups of their own
    os.killpg(nodes[1].pid, signal.SIGKILL)
    for worker in at_work:
        os.kill(worker, signal.SIGKILL)
    nodes[1].communicate()
    said = end(nodes[:1], patience=90)[0]
    assert any(line.startswith("eblvm: rank 0: rank 1 ") for line in lines(said)), said
    expect_an_end(both(tmp_path / "run"))
    expect_bitwise(whole, tmp_path / "run")


def test_a_killed_worker_is_started_again_on_both_hosts(whole: Path, link: None, tmp_path: Path) -> None:
    nodes = both(tmp_path / "run", "--max-restarts", "2")
    wait_for(tmp_path / "run", 10, nodes[0])
    os.kill(workers(nodes[1])[0], signal.SIGKILL)
    expect_an_end(nodes)
    expect_bitwise(whole, tmp_path / "run")
