"""Shared by all tests: one torch thread (small tensors; busy cores), and where the real data is."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
LONGEST = ("tests/rehearsal", "tests/kernels/test_triton", "tests/realdata", "tests/distributed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that no worker is alone with one at the end."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Stores that training makes of pictures go to a folder of the tests'."""
    os.environ["EBLVM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, $EBLVM_DATA or ../shared/data; the test skips where there is none."""
    folder = Path(os.environ.get("EBLVM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: set EBLVM_DATA (looked in {folder})")
    return folder
