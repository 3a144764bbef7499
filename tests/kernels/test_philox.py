"""The noise: published vectors, equal bits from both backends, independence of the batch split."""

import subprocess
import sys

import pytest
import torch

from eblvm import kernels
from eblvm.kernels import philox
from eblvm.kernels.philox import Key, Purpose, reference
from eblvm.kernels.philox.reference import Kind

PURPOSE = philox.purpose(Purpose.PERTURB, 3)
CONTINUOUS = (philox.uniform, philox.normal, philox.logistic, philox.gumbel)
DRAWS = (*CONTINUOUS, philox.rademacher)
SIZES = ((1, 1), (63, 3), (100, 257), (257, 5), (1, 4096), (3000, 1), (0, 4), (4, 0), (100, 560))
needs_native = pytest.mark.skipif(not hasattr(torch.ops.eblvm, "philox"), reason="the native library is not built")


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32) if x.dtype == torch.float32 else x


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox4x32_gives_the_random123_vectors(counter, key, expected):
    c0, c1, c2, c3 = (torch.tensor([word]) for word in counter)
    k0, k1 = (torch.tensor([word]) for word in key)
    assert [int(word) for word in reference.philox4x32((c0, c1, c2, c3), (k0, k1))] == expected


@needs_native
def test_native_gives_the_random123_vectors():
    zeros = torch.ops.eblvm.philox(torch.tensor(0), 0, 0, 1, 4, 0, int(Kind.WORDS))
    assert zeros.tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    # Block 0xffffffff of the published vector lies beyond any tensor that fits: all ones but for block 0.
    ones = torch.tensor(-1)
    got = torch.ops.eblvm.philox(ones, 2**32 - 1, 2**32 - 1, 1, 4, 2**32 - 1, int(Kind.WORDS))
    full = torch.tensor([0xFFFFFFFF])
    expected = reference.philox4x32((torch.tensor([0]), full, full, full), (full, full))
    assert got[0].tolist() == [int(word) for word in expected]


@pytest.mark.parametrize("count_width", SIZES, ids=str)
@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
@needs_native
def test_native_bits_equal_reference(kind, count_width):
    count, width = count_width
    seeds = torch.tensor([[5, 2**62 + 17, 0], [2**63 - 1, 2**32, 1]])
    arguments = (seeds, 2**32 - 2, PURPOSE, count, width, 11, int(kind))
    native, specified = torch.ops.eblvm.philox(*arguments), reference.philox(*arguments)
    assert native.shape == specified.shape == (2, 3, count, width)
    assert native.dtype == specified.dtype
    assert torch.equal(bits(native), bits(specified))


@needs_native
def test_native_bits_equal_reference_over_many_words():
    for kind in (Kind.NORMAL, Kind.LOGISTIC, Kind.GUMBEL):
        arguments = (torch.tensor(99), 1, 2, 16, 62_501, 0, int(kind))
        assert torch.equal(bits(torch.ops.eblvm.philox(*arguments)), bits(reference.philox(*arguments)))


@needs_native
def test_native_is_the_same_with_more_threads():
    one_thread = philox.normal(Key(4, 1), PURPOSE, 300, (561,))
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    try:
        assert torch.equal(one_thread, philox.normal(Key(4, 1), PURPOSE, 300, (561,)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("draw", [*DRAWS, philox.words])
def test_replicas_equal_single_runs(draw):
    seeds = torch.tensor([3, 2**40 + 1, 77])
    together = draw(Key(seeds, 9), PURPOSE, 5, (2, 3))
    assert together.shape == (3, 5, 2, 3)
    for seed, replica in zip(seeds.tolist(), together, strict=True):
        assert torch.equal(replica, draw(Key(seed, 9), PURPOSE, 5, (2, 3)))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (257,)])
@pytest.mark.parametrize("draw", [*DRAWS, philox.words])
def test_samples_do_not_depend_on_the_split(draw, shape):
    key = Key(12345, 6)
    whole = draw(key, PURPOSE, 100, shape, first=50)
    assert whole.shape == (100, *shape)
    parts = [draw(key, PURPOSE, count, shape, first=50 + first) for first, count in ((0, 1), (1, 63), (64, 36))]
    assert torch.equal(whole, torch.cat(parts))


def test_every_counter_word_matters():
    base = philox.words(Key(1, 2), 3, 4, (5,))
    others = [
        philox.words(Key(1 + 2**32, 2), 3, 4, (5,)),
        philox.words(Key(1, 3), 3, 4, (5,)),
        philox.words(Key(1, 2), 4, 4, (5,)),
        philox.words(Key(1, 2), 3, 4, (5,), first=4),
    ]
    assert base.unique().numel() == base.numel()
    for other in others:
        assert not torch.isin(other, base).any()


@pytest.mark.parametrize("kind", list(Kind), ids=lambda kind: kind.name)
def test_reference_under_vmap(kind):
    seeds = torch.tensor([4, 5, 2**50])
    mapped = torch.vmap(lambda seed: reference.philox(seed, 1, PURPOSE, 3, 7, 2, int(kind)))(seeds)
    assert torch.equal(mapped, reference.philox(seeds, 1, PURPOSE, 3, 7, 2, int(kind)))


def test_public_draws_under_vmap_and_grad():
    seeds = torch.tensor([[4, 5, 2**50], [1, 2, 3]])
    draw = torch.vmap(torch.vmap(lambda seed: philox.normal(Key(seed, 1), PURPOSE, 3, (7,))), in_dims=1)
    assert torch.equal(draw(seeds), philox.normal(Key(seeds.T, 1), PURPOSE, 3, (7,)))
    order = torch.vmap(lambda seed: philox.permutation(Key(seed, 1), PURPOSE, 9))(seeds[0])
    assert torch.equal(order, philox.permutation(Key(seeds[0], 1), PURPOSE, 9))

    def loss(x, seed):
        return (x * philox.normal(Key(seed, 1), PURPOSE, 5, (7,))).sum()

    gradient = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(torch.ones(5, 7), seeds[0])
    assert torch.equal(gradient, philox.normal(Key(seeds[0], 1), PURPOSE, 5, (7,)))


def test_traced_on_meta_and_in_a_compiled_step():
    assert philox.normal(Key(1, 2), PURPOSE, 3, (4,), device="meta").shape == (3, 4)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def perturb(x, step):
        return x + philox.normal(Key(7, step), PURPOSE, 5, (3,))

    for step in (1, 2, 3):
        assert torch.equal(perturb(torch.zeros(5, 3), step), philox.normal(Key(7, step), PURPOSE, 5, (3,)))


@needs_native
def test_native_op_passes_torch_opcheck():
    torch.library.opcheck(torch.ops.eblvm.philox.default, (torch.tensor([1, 2]), 3, 4, 5, 6, 7, int(Kind.NORMAL)))


def test_global_rng_is_not_touched():
    before = torch.get_rng_state()
    for draw in DRAWS:
        draw(Key(1, 2), PURPOSE, 10, (10,))
    philox.permutation(Key(1, 2), PURPOSE, 10)
    reference.philox(torch.tensor(1), 2, PURPOSE, 10, 10, 0, int(Kind.NORMAL))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("draw", CONTINUOUS)
def test_dtype_casts_the_same_noise(draw):
    single = draw(Key(1, 2), PURPOSE, 10, (3,))
    assert single.dtype == torch.float32
    assert torch.equal(draw(Key(1, 2), PURPOSE, 10, (3,), dtype=torch.float64), single.double())
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(draw(Key(1, 2), PURPOSE, 10, (3,)), single)
        assert reference.philox(torch.tensor(1), 2, PURPOSE, 10, 3, 0, int(Kind.NORMAL)).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: philox.normal(Key(1, 0), PURPOSE, -1), "count=-1"),
        (lambda: philox.normal(Key(1, 0), PURPOSE, 1, (-2,)), r"shape=\(-2,\)"),
        (lambda: philox.normal(Key(1, 2**32), PURPOSE, 1), "Key.step=4294967296"),
        (lambda: philox.normal(Key(1, -1), PURPOSE, 1), "Key.step=-1"),
        (lambda: philox.normal(Key(-1, 0), PURPOSE, 1), "Key.seed=-1"),
        (lambda: philox.normal(Key(2**63, 0), PURPOSE, 1), "Key.seed=9223372036854775808"),
        (lambda: philox.normal(Key(torch.tensor([1.0]), 0), PURPOSE, 1), "torch.float32; expected torch.int64"),
        (lambda: philox.normal(Key(1, 0), -5, 1), "purpose=-5"),
        (lambda: philox.normal(Key(1, 0), PURPOSE, 2, first=2**32 - 1), "samples 4294967295..4294967296"),
        (lambda: philox.normal(Key(1, 0), PURPOSE, 2, first=-1), "samples -1..0"),
        (lambda: philox.purpose(Purpose.LATENT, 65536), "substep=65536"),
        (lambda: philox.permutation(Key(1, 0), PURPOSE, -1), "n=-1"),
        (lambda: philox.bernoulli(Key(1, 0), PURPOSE, torch.ones(3, dtype=torch.int64)), "torch.int64"),
        (lambda: philox.bernoulli(Key(torch.tensor([1]), 0), PURPOSE, torch.ones(1)), r"shape \(1,\)"),
    ],
)
def test_errors_say_what_was_got(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@needs_native
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor(1.0), 0, 0, 1, 1, 0, 2), "use seed.long()"),
        ((torch.tensor(1), 2**32, 0, 1, 1, 0, 2), "got step 4294967296"),
        ((torch.tensor(1), 0, -1, 1, 1, 0, 2), "got purpose -1"),
        ((torch.tensor(1), 0, 0, -1, 1, 0, 2), "got count -1"),
        ((torch.tensor(1), 0, 0, 1, 1, 2**32, 2), "got samples from 4294967296"),
        ((torch.tensor(1), 0, 0, 1, 1, 0, 6), "got kind 6"),
    ],
)
def test_native_op_checks_its_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        torch.ops.eblvm.philox(*arguments)


def test_purposes_are_frozen():
    names = ["INIT_THETA", "INIT_PHI", "DATA", "ORDER", "PERTURB", "LATENT", "LEVEL", "DIRECTION", "CHAIN_V", "CHAIN_H"]
    names += ["CONTRAST", "AIS_V", "AIS_H", "SAMPLE_V", "SAMPLE_H", "EVAL", "LANGEVIN"]
    # Later ones may be appended; these are in published results.
    assert [Purpose(value).name for value in range(1, 18)] == names
    assert philox.purpose(Purpose.LATENT, 5) == (6 << 16) + 5


def test_backends_serve_every_device_once():
    rows = kernels.backends()
    for op, device in {(row.op, row.device) for row in rows}:
        used = [row.name for row in rows if (row.op, row.device) == (op, device) and row.serves]
        assert len(used) == 1, (op, device, used)
    assert all(row.reason for row in rows)


def test_native_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("EBLVM_NATIVE", "0")
    program = (
        "from eblvm import kernels; from eblvm.kernels.philox import *; "
        "print(next(r.reason for r in kernels.backends() if r.name == 'native' and r.device == 'cpu'));"
        "print(normal(Key(1, 2), 3, 4, (5,)).flatten().tolist())"
    )
    reason, noise = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert reason == "switched off by EBLVM_NATIVE=0"
    assert noise == str(philox.normal(Key(1, 2), 3, 4, (5,)).flatten().tolist())


@pytest.mark.parametrize("seed", [7, torch.tensor(7), torch.tensor([1, 2, 3])], ids=["int", "tensor", "replicas"])
@pytest.mark.parametrize("number", [0, 1, 5])
@pytest.mark.parametrize("shape", [(2,), (4,), (2, 5), ()], ids=str)
@pytest.mark.parametrize("draw", [philox.normal, philox.logistic], ids=["normal", "logistic"])
def test_streams_are_the_single_draws(draw, shape, number, seed) -> None:
    got = philox.streams(draw, number, Key(seed, 3), 9, 300, shape, first=4, dtype=torch.float64)
    assert len(got) == number
    for i, noise in enumerate(got):
        assert torch.equal(noise, draw(Key(seed, 3), 9 + i, 300, shape, first=4, dtype=torch.float64))
