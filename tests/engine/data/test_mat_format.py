"""MATLAB files: every form that scipy writes is read as scipy reads it."""

import io
from pathlib import Path

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from eblvm.engine.data.readers import read
from eblvm.engine.data.readers.mat_format import variables
from eblvm.engine.errors import UserError

ARRAYS = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
    "empty": np.zeros((0, 5)),
    "one": np.array([[7]], np.uint8),
    "small": np.array([[1, 2]], np.int16),
    **{
        code: (np.arange(6).reshape(2, 3) - 3).astype(code) for code in ("i1", "i2", "i4", "i8", "f4", "f8", "u2", "u8")
    },
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("version", ["4", "5"])
def test_arrays_are_those_that_scipy_reads(version: str, packed: bool) -> None:
    arrays = {
        k: v for k, v in ARRAYS.items() if version == "5" or (v.ndim == 2 and v.dtype.str[1:] in ("f8", "f4", "i4"))
    }
    buffer = io.BytesIO()
    savemat(buffer, arrays, format=version, do_compression=packed and version == "5")
    expected = loadmat(io.BytesIO(buffer.getvalue()))
    found = {name: array for name, _, array in variables(buffer.getvalue(), list(arrays), lambda _: None)}
    assert set(found) == set(arrays)
    for name in arrays:
        assert np.array_equal(found[name], expected[name]), name
        assert found[name].dtype == expected[name].dtype


def test_what_is_not_wanted_is_named_only() -> None:
    buffer = io.BytesIO()
    savemat(buffer, {"a": np.zeros(3), "b": {"x": 1}, "c": "text"}, do_compression=True)
    found = list(variables(buffer.getvalue(), ["c"], lambda _: None))
    assert [(name, kind, array) for name, kind, array in found] == [
        ("a", "double", None), ("b", "struct", None), ("c", "char", None),
    ]  # fmt: skip


def test_the_other_byte_order() -> None:
    def element(kind: int, content: bytes) -> bytes:
        return kind.to_bytes(4, "big") + len(content).to_bytes(4, "big") + content + b"\0" * (-len(content) % 8)

    flags, sizes = bytes([0, 0, 0, 11]) + bytes(4), bytes([0, 0, 0, 1, 0, 0, 0, 2])
    matrix = element(6, flags) + element(5, sizes) + element(1, b"ff") + element(4, bytes([1, 2, 3, 4]))
    content = b"MATLAB 5.0".ljust(124) + b"\1\0MI" + element(14, matrix)
    (found,) = variables(content, ["ff"], lambda _: None)
    assert found.array.tolist() == [[0x102, 0x304]]
    assert np.array_equal(loadmat(io.BytesIO(content))["ff"], found.array)


def test_every_cut_is_refused_or_leaves_whole_variables(tmp_path: Path) -> None:
    for packed in (False, True):
        path = tmp_path / "frey_rawface.mat"
        savemat(path, {"ff": np.zeros((560, 5), np.uint8)}, do_compression=packed)
        content = path.read_bytes()
        for length in range(len(content)):
            if packed or length % 97 == 0:
                path.write_bytes(content[:length])
                with pytest.raises(UserError, match=r"frey_rawface.mat (cannot be read|is empty)|got keys none"):
                    read(path)
