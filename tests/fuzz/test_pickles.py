"""Hostile pickles: they give an array, a container or one line, and never crash the interpreter."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eblvm.engine.data.readers import cifar, pickles
from eblvm.engine.errors import UserError

from . import hostile_pickles
from .properties import bounded, read_or_refused

# Runs in a process of its own, so that a crash shows as an exit code; more than another gigabyte is an error.
READER = """
import resource, sys, time
from pathlib import Path
from eblvm.engine.data.readers import cifar
from eblvm.engine.errors import UserError

used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, flush=True)
    began = time.monotonic()
    try:
        cifar.python(path.read_bytes(), path.name)
    except UserError as error:
        assert "\\n" not in str(error), error
    assert time.monotonic() - began < 5, "it hangs"
"""


def test_no_hostile_pickle_ends_the_interpreter(tmp_path: Path) -> None:
    attacks = hostile_pickles.everything()
    for title, content in attacks.items():
        (tmp_path / title.replace("/", " ")).write_bytes(content)
    done = subprocess.run([sys.executable, "-c", READER, str(tmp_path)], capture_output=True, text=True, timeout=300)
    read = done.stdout.splitlines()
    assert done.returncode == 0, f"{read[-1:]} ended with {done.returncode}: {done.stderr[-2000:]}"
    assert len(read) == len(attacks)


@pytest.mark.parametrize("title", hostile_pickles.ATTACKS)
def test_attacks_are_refused_in_one_line(title: str) -> None:
    """Alone an attack may be plain data but no batch; as a batch's data or labels nothing of it is read."""
    attack = hostile_pickles.ATTACKS[title]
    for wrap in (hostile_pickles.as_data, hostile_pickles.as_labels):
        with pytest.raises(UserError, match=r"^batch") as refusal:
            cifar.python(wrap(attack), "batch")
        assert "\n" not in str(refusal.value)


def test_the_array_over_chosen_bytes_is_refused_before_it_is_made() -> None:
    with pytest.raises(UserError, match=r"is refused: .*it calls numpy.ndarray"):
        pickles.loads(hostile_pickles.bare(hostile_pickles.ATTACKS["ndarray over chosen bytes"]), "batch")


@pytest.mark.parametrize("protocol", range(6))
def test_a_sound_batch_is_read(protocol: int) -> None:
    content, batch = hostile_pickles.good(protocol)
    images, labels = cifar.python(content, "batch")
    assert type(images) is np.ndarray
    assert np.array_equal(images.reshape(2, -1), batch["data"])
    assert labels.tolist() == batch["labels"]


def test_types_orders_and_layouts_survive() -> None:
    for code in ("u1", "<i2", ">u4", "<i8", ">f4", "<f8", "?"):
        for order in ("C", "F"):
            array = np.arange(6).reshape(2, 3).astype(code).copy(order)
            for protocol in range(6):
                loaded = pickles.loads(pickle.dumps(array, protocol=protocol), "batch")
                assert np.array_equal(loaded, array)
                assert (loaded.dtype.kind, loaded.dtype.itemsize) == (array.dtype.kind, array.dtype.itemsize)


@bounded
@given(st.data())
def test_mutated_batches_are_read_or_refused(data: st.DataObject) -> None:
    """Read a valid batch with bytes replaced, cut out and repeated."""
    content = bytearray(hostile_pickles.good(data.draw(st.integers(0, 5)))[0][:3000] + b".")
    if data.draw(st.booleans()):
        content = bytearray(hostile_pickles.good(2)[0])
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, min(len(content) - 1, 400)))
        kind = data.draw(st.sampled_from(("replace", "cut", "repeat")))
        if kind == "replace":
            content[place] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[place : place + data.draw(st.integers(1, 8))]
        else:
            content[place:place] = content[place : place + data.draw(st.integers(1, 40))]
    read_or_refused(lambda: cifar.python(bytes(content), "batch"))


FRAGMENTS = [
    *(a for a in hostile_pickles.ATTACKS.values() if a and len(a) < 2000),
    b"(", b")", b"]", b"}", b"t", b"R", b"b", b"s", b"a", b"e", b"u", b"0", b"2", b"\x94", b"h\x00", b"q\x00", b"N",
    b"\x81", b"\x93", b"\x85", b"\x86", b"\x87", b"K\x01",
    hostile_pickles.NDARRAY, hostile_pickles.DTYPE, hostile_pickles.RECONSTRUCT, hostile_pickles.EMPTY_ARRAY,
    hostile_pickles.U1,
]  # fmt: skip


@bounded
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40))
def test_any_order_of_instructions_is_read_or_refused(parts: list[bytes]) -> None:
    read_or_refused(lambda: pickles.loads(b"\x80\x04" + b"".join(parts) + b".", "batch"))
