"""The tiles of a launch: measured once, kept for later processes, the same inside a capture, and never a crash.

There is no GPU: `Gpu` takes the place of the device's properties and of the clock; what compiles is decided per test.
"""

import json
import warnings
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from eblvm.kernels.grbm.triton import NAMES, products_of
from eblvm.kernels.runtime import tiles, tuning
from eblvm.kernels.runtime.tiles import Problem, Tiles

PROBLEM = Problem("rows", 25, 560, 400, 1, 4, 2, "ieee", 80, "free float32")


class Gpu:
    """A device with 84 multiprocessors, on which the `best` tiles are fastest and `broken` ones raise."""

    device = torch.device("cuda", 0)

    def __init__(self, monkeypatch, folder):
        self.launched: list[Tiles] = []
        self.capturing, self.best, self.error = False, 3, None
        properties = SimpleNamespace(multi_processor_count=84)
        monkeypatch.setenv("EBLVM_CACHE", str(folder))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr("triton.testing.do_bench", self.timed)
        self.new_process()

    def new_process(self) -> None:
        tuning._launched.clear()
        tuning._known.cache_clear()
        self.launched.clear()

    def timed(self, run, **_) -> float:
        run()
        return float(self.launched[-1] != self.fastest())

    def fastest(self) -> Tiles:
        return self.ranked()[self.best]

    def ranked(self, problem=PROBLEM) -> tuple[Tiles, ...]:
        return tiles.ranked(problem, 84)

    def run(self, one: Tiles) -> None:
        if self.error is not None:
            self.error(one)
        self.launched.append(one)

    def launch(self, problem=PROBLEM) -> Tiles:
        tuning.launch(problem, self, self.run)
        return self.launched[-1]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    yield Gpu(monkeypatch, tmp_path)
    tuning._launched.clear()
    tuning._known.cache_clear()


def test_the_fastest_is_launched_and_measured_once(gpu) -> None:
    assert gpu.launch() == gpu.fastest() != gpu.ranked()[0]
    assert set(gpu.launched) == {*gpu.ranked()[: tuning.TIMED], gpu.fastest()._replace(registers=None)}
    gpu.launched.clear()
    assert gpu.launch() == gpu.fastest()
    assert gpu.launched == [gpu.fastest()]


def test_a_later_process_launches_what_the_first_measured(gpu) -> None:
    first = gpu.launch()
    gpu.new_process()
    assert gpu.launch() == first
    assert set(gpu.launched) == {first}


@pytest.mark.parametrize("tune", ["1", "0"])
@pytest.mark.parametrize("later", [False, True])
def test_a_capture_launches_only_what_its_process_has_launched(gpu, later, tune, monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_TUNE", tune)
    gpu.launch()
    if later:
        gpu.new_process()
        gpu.launch()
    compiled = set(gpu.launched)
    gpu.launched.clear()
    gpu.capturing = True
    assert gpu.launch() in compiled
    assert len(gpu.launched) == 1


def test_a_first_launch_inside_a_capture_is_an_error(gpu) -> None:
    gpu.launch()
    gpu.capturing = True
    with pytest.raises(RuntimeError, match=r"'pull'.*batch 25, D=560, H=400.*run the same step once"):
        gpu.launch(PROBLEM._replace(kernel="pull"))


def test_without_tuning_the_model_counts_the_multiprocessors_of_the_device(gpu, monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_TUNE", "0")
    large = PROBLEM._replace(plan="columns", D=784, H=500, batch=100)
    assert tiles.ranked(large, 84)[0] != tiles.ranked(large, tiles.MULTIPROCESSORS)[0]
    assert gpu.launch(large) == gpu.ranked(large)[0]


@pytest.mark.parametrize("error", [CompilationError("src", None, "Loop-carried"), RuntimeError("Triton Error [CUDA]")])
def test_tiles_that_do_not_launch_are_passed_over_with_one_warning(gpu, error) -> None:
    def fails(one: Tiles) -> None:
        if one.split > 1:
            raise error

    gpu.error = fails
    with pytest.warns(RuntimeWarning) as said:
        found = gpu.launch()
    assert found.split == 1
    assert len(said) == 1
    failed = sum(one.split > 1 for one in gpu.ranked()[: tuning.TIMED])
    assert f"{failed} tiles do not launch" in str(said[0].message)
    assert ("Loop-carried" in str(said[0].message)) or ("Triton Error" in str(said[0].message))
    assert str(gpu.ranked()[0]) in str(said[0].message)


def test_too_much_shared_memory_is_passed_over_in_silence(gpu, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "TIMED", 4)

    def fails(one: Tiles) -> None:
        if one != gpu.ranked()[-1]:
            raise OutOfResources(100, 64, "shared memory")

    gpu.error = fails
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpu.launch() == gpu.ranked()[-1]


@pytest.mark.parametrize("tune", ["1", "0"])
def test_one_sentence_if_nothing_launches(gpu, tune, monkeypatch) -> None:
    monkeypatch.setenv("EBLVM_TUNE", tune)

    def fails(one: Tiles) -> None:
        raise RuntimeError("Failed to find C compiler\nPlease specify via CC")

    gpu.error = fails
    with pytest.raises(RuntimeError) as said:
        gpu.launch()
    text = str(said.value)
    assert "'free float32' (rows, batch 25, D=560, H=400, ieee) launches with none of its" in text
    assert "RuntimeError: Failed to find C compiler; set EBLVM_TRITON=0" in text
    assert "\n" not in text


def test_known_tiles_that_no_longer_launch_are_measured_again(gpu) -> None:
    first = gpu.launch()
    gpu.new_process()
    gpu.best = 4

    def fails(one: Tiles) -> None:
        if one == first:
            raise RuntimeError("Triton Error [CUDA]: device kernel image is invalid")

    gpu.error = fails
    with pytest.warns(RuntimeWarning, match="1 tiles do not launch"):
        assert gpu.launch() == gpu.fastest() != first


def test_kernels_with_equal_products_do_not_have_each_others_tiles(gpu) -> None:
    names = {kind: (products_of("rows", kind, 0), name) for kind, name in NAMES.items() if name != "sliced"}
    assert len({products for products, _ in names.values()}) < len(names) == len({name for _, name in names.values()})
    gpu.launch()
    gpu.best = 4
    assert gpu.launch(PROBLEM._replace(kernel="residual")) == gpu.fastest()
    gpu.new_process()
    gpu.best = 3
    assert gpu.launch() == gpu.fastest()


@pytest.mark.parametrize("changed", ["eblvm", "triton"])
def test_another_version_measures_again(gpu, changed, monkeypatch) -> None:
    gpu.launch()
    gpu.new_process()
    gpu.best = 4
    if changed == "eblvm":
        monkeypatch.setattr(tuning, "version", lambda _: "9.9")
    else:
        monkeypatch.setattr("triton.__version__", "9.9")
    assert gpu.launch() == gpu.fastest()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": [1]}', '{"a": 3}'])
def test_a_damaged_file_is_measured_again(gpu, text, tmp_path) -> None:
    gpu.launch()
    (path,) = tmp_path.glob("tiles-*.json")
    path.write_text(text)
    gpu.new_process()
    assert gpu.launch() == gpu.fastest()
    assert len(json.loads(path.read_text())) == 1


def test_processes_keep_each_others_tiles(gpu, tmp_path) -> None:
    gpu.launch(PROBLEM._replace(kernel="pull"))
    (path,) = tmp_path.glob("tiles-*.json")
    theirs = path.read_text()
    gpu.new_process()
    path.unlink()
    tuning._known("Some GPU")
    path.write_text(theirs)
    gpu.launch()
    assert len(json.loads(path.read_text())) == 2


def test_splits_where_programs_are_few() -> None:
    for batch in (16, 25, 100):  # 1, 2 and 7 blocks of samples for 108 multiprocessors
        best = tiles.ranked(PROBLEM._replace(batch=batch), 108)[0]
        assert best.split > 1
    filled = tiles.ranked(PROBLEM._replace(batch=16 * 108), 108)[0]
    assert filled.split == 1
