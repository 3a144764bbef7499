"""Set-up of all tests: one torch thread (small tensors, busy cores), the cache folder, and the folder of real data."""

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
LONGEST = ("tests/rehearsal", "tests/kernels/test_triton", "tests/realdata", "tests/distributed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that no worker ends alone with one."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Put the stores that training makes of pictures into a temporary folder."""
    os.environ["EBLVM_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real data sets, $EBLVM_DATA or ../shared/data; skip the test if there is none."""
    folder = Path(os.environ.get("EBLVM_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data: set EBLVM_DATA (looked in {folder})")
    return folder
