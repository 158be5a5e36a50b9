"""One thread for the tiny kernels, and one event loop for the engine's tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def anyio_backend():
    return "asyncio"
