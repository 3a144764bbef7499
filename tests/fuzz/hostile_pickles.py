"""Pickles that attack their reader, assembled from instructions: by wild pointers, huge sizes and deep nesting."""

import pickle
import struct
from typing import Any

import numpy as np

PROTO, STOP = b"\x80\x04", b"."


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<I", len(content)) + content


def blob(value: bytes) -> bytes:
    return b"B" + struct.pack("<I", len(value)) + value


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def tuple_of(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def called(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + b"R"


def built(thing: bytes, state: bytes) -> bytes:
    return thing + state + b"b"


NONE, TRUE, FALSE = b"N", b"\x88", b"\x89"
NDARRAY, DTYPE = name("numpy", "ndarray"), name("numpy", "dtype")
RECONSTRUCT = name("numpy.core.multiarray", "_reconstruct")
FROMBUFFER = name("numpy._core.numeric", "_frombuffer")
EMPTY_ARRAY = called(RECONSTRUCT, NDARRAY, tuple_of(number(0)), blob(b"b"))
MINUS_ONE = number(-1)


def dtype(code: str, state: bytes | None = None) -> bytes:
    made = called(DTYPE, text(code), FALSE, TRUE)
    return made if state is None else built(made, state)


def dtype_state(order: str = "|", flags: int = 0, size: int = -1, extra: bytes = NONE) -> bytes:
    parts = (number(3), text(order), extra, NONE, NONE, number(size), MINUS_ONE, number(flags))
    return tuple_of(*parts)


def array(kind: bytes, content: bytes, *shape: int, fortran: bytes = FALSE) -> bytes:
    sizes = tuple_of(*map(number, shape))
    return built(EMPTY_ARRAY, tuple_of(number(1), sizes, kind, fortran, content))


U1 = dtype("u1", dtype_state())
POINTER = struct.pack("<Q", 0xDEADBEEF) * 8
DEEP = 200_000

ATTACKS: dict[str, bytes] = {
    "ndarray over chosen bytes": called(NDARRAY, tuple_of(number(1)), text("O"), blob(POINTER)),
    "ndarray with strides": called(
        NDARRAY, tuple_of(number(9)), text("u1"), blob(b"abc"), number(0), tuple_of(number(-(2**40)))
    ),
    "ndarray of a huge shape": called(NDARRAY, tuple_of(number(2**40)), text("u1")),
    "ndarray by NEWOBJ": NDARRAY + tuple_of(tuple_of(number(1)), text("O"), blob(POINTER)) + b"\x81",
    "ndarray by OBJ": b"(" + NDARRAY + tuple_of(number(1)) + text("O") + b"o",
    "ndarray by INST": b"(" + tuple_of(number(1)) + text("O") + b"inumpy\nndarray\n",
    "objects": array(dtype("O"), blob(POINTER), 8),
    "objects in a list": array(dtype("O"), b"](K\x01K\x02e", 2),
    "objects by O8": array(dtype("O8"), blob(POINTER), 8),
    "objects from a buffer": called(FROMBUFFER, blob(POINTER), dtype("O"), tuple_of(number(8)), text("C")),
    "structured": array(called(DTYPE, b"](" + tuple_of(text("a"), text("O")) + b"e"), blob(POINTER), 8),
    "structured by its state": array(dtype("V8", dtype_state(extra=tuple_of(text("u1"), number(3)))), blob(POINTER), 8),
    "void": array(dtype("V8"), blob(POINTER), 8),
    "unicode": array(dtype("U1000000"), blob(POINTER), 1),
    "dates": array(dtype("M8[s]"), blob(POINTER), 8),
    "flags of a reference type": array(dtype("u8", dtype_state("<", flags=63)), blob(POINTER), 8),
    "a size of its own": array(dtype("u1", dtype_state(size=2**40)), blob(POINTER), 64),
    "a dtype that is a string": array(text("u1"), blob(b"abc"), 3),
    "a dtype by numpy's own state twice": array(built(U1, dtype_state(">")), blob(b"abc"), 3),
    "more shape than bytes": array(U1, blob(b"abc"), 2**40),
    "shape that wraps round": array(U1, blob(b""), 2**32, 2**32),
    "shape with zero": array(U1, blob(b""), 2**62, 0),
    "shape below zero": array(U1, blob(b"abc"), -3),
    "shape of shapes": built(EMPTY_ARRAY, tuple_of(number(1), tuple_of(tuple_of()), U1, FALSE, blob(b"abc"))),
    "many dimensions": array(U1, blob(b"a"), *[1] * 70),
    "state of another length": built(EMPTY_ARRAY, tuple_of(number(1), tuple_of(number(3)))),
    "state that is a dict": built(EMPTY_ARRAY, b"}"),
    "state twice": built(array(U1, blob(b"abc"), 3), tuple_of(number(1), tuple_of(number(1)), U1, FALSE, blob(b"a"))),
    "content that is a list": array(U1, b"](K\x01e", 1),
    "content that is a number": array(U1, number(3), 1),
    "reconstruct of a dtype": called(RECONSTRUCT, DTYPE, tuple_of(number(0)), blob(b"b")),
    "reconstruct without arguments": called(RECONSTRUCT),
    "a function's defaults": built(name("_codecs", "encode"), tuple_of(NONE, b"}" + text("__defaults__") + b")s")),
    "a function's attributes": built(RECONSTRUCT, b"}" + text("x") + number(1) + b"s"),
    "an item of a function": RECONSTRUCT + number(1) + number(2) + b"s",
    "an item beyond an array": array(U1, blob(b"abc"), 3) + number(2**40) + number(2) + b"s",
    "append to an array": array(U1, blob(b"abc"), 3) + number(2) + b"a",
    "eval": called(name("builtins", "eval"), text("1")),
    "getattr": called(name("builtins", "getattr"), text("a"), text("upper")),
    "os.system by STACK_GLOBAL": text("os") + text("system") + b"\x93" + tuple_of(text("true")) + b"R",
    "a dotted name": text("numpy") + text("ndarray.tofile") + b"\x93",
    "another codec": called(name("_codecs", "encode"), text("x"), text("rot13")),
    "copyreg's extension": b"\x82\x01",
    "persistent": b"Pwhatever\n",
    "a buffer that is not there": b"\x97",
    "a memo place beyond memory": NONE + b"r" + struct.pack("<I", 0xFFFFFFF0),
    "a memo place in words": NONE + b"p4294967280\n",
    "a memo place that is empty": b"h\x07",
    "bytes beyond the file": b"\x8e" + struct.pack("<Q", 2**50) + b"abc",
    "a bytearray beyond the file": b"\x96" + struct.pack("<Q", 2**50) + b"abc",
    "text beyond the file": b"\x8d" + struct.pack("<Q", 2**50) + b"abc",
    "a frame beyond the file": b"\x95" + struct.pack("<Q", 2**50),
    "a number beyond the file": b"\x8b" + struct.pack("<i", 2**31 - 1) + b"abc",
    "a number of negative length": b"\x8b" + struct.pack("<i", -5),
    "a number in words": b"I" + b"9" * 100_000 + b"\n",
    "a number in no words": b"Iseven\n",
    "a float in no words": b"Fseven\n",
    "text that is not UTF-8": b"X" + struct.pack("<I", 2) + b"\xff\xfe",
    "an escape that is none": b"S'\\q'\n",
    "a string without quotes": b"Sabc\n",
    "deep tuples as a key": b"}" + b")" + b"\x85" * DEEP + NONE + b"s",
    "deep frozen sets": b"}" + b"(\x91" + b"".join([b"(" + b"h\x00" + b"\x91"] * 3) + NONE + b"s",
    "deep lists": b"]" * DEEP + b"a" * (DEEP - 1),
    "deep dicts": (b"}" + text("a")) * 50_000 + NONE + b"s" * 50_000,
    "laughs": b"]" + b"".join(b"q" + bytes([i]) + b"](" + (b"h" + bytes([i])) * 9 + b"e" for i in range(9)),
    "a list in itself": b"]q\x00h\x00a",
    "a list as a key": b"}]Ns",
    "a mark at the end": b"(",
    "nothing": b"",
    "a pop too many": b"0",
    "a dup of nothing": b"2",
    "an unknown instruction": b"\xf0",
    "a protocol that is not yet": b"\x80\xff" + NONE,
    "no stop": None,  # type: ignore[dict-item]
}


def bare(attack: bytes | None) -> bytes:
    return PROTO + NONE if attack is None else PROTO + attack + STOP


def as_data(attack: bytes | None) -> bytes:
    """Return a CIFAR-10 batch whose 'data' is the attack."""
    if attack is None:
        return PROTO + b"}" + text("data")
    return PROTO + b"}" + text("data") + attack + b"s" + text("labels") + b"](K\x01K\x02es" + STOP


def as_labels(attack: bytes | None) -> bytes:
    """Return a CIFAR-10 batch whose 'labels' are the attack."""
    if attack is None:
        return PROTO + b"}" + text("labels")
    data = array(U1, blob(b"\0" * 3072), 1, 3072)
    return PROTO + b"}" + text("data") + data + b"s" + text("labels") + attack + b"s" + STOP


def everything() -> dict[str, bytes]:
    """Return all attacks, alone and in both places of a batch."""
    wrappers = {"alone": bare, "as data": as_data, "as labels": as_labels}
    return {f"{title}, {place}": wrap(attack) for title, attack in ATTACKS.items() for place, wrap in wrappers.items()}


def good(protocol: int) -> tuple[bytes, dict[str, Any]]:
    """Return a valid batch, which must still be read."""
    rows = np.arange(2 * 3072, dtype=np.uint16).astype(np.uint8).reshape(2, 3072)
    batch = {"data": rows, "labels": [3, 7], "batch_label": b"one", "filenames": [b"a.png", b"b.png"]}
    return pickle.dumps(batch, protocol=protocol), batch
