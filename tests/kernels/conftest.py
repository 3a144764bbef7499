"""One torch thread: the tensors are small, and threads that wait for a busy core cost more than they gain."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def nan_filled():
    """New memory is NaN (the largest integer for integers), so that an element that no kernel writes is seen."""
    torch.use_deterministic_algorithms(True)
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.use_deterministic_algorithms(False)
