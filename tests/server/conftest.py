"""One running server for all tests that do not change it, and clients of it."""

import httpx
import pytest

from tests.server.world import running


@pytest.fixture(scope="session")
def world():
    with running() as world:
        yield world


@pytest.fixture(scope="session")
def client(world):
    with httpx.Client(base_url=world.url, timeout=30) as client:
        yield client


@pytest.fixture
def anyio_backend():
    return "asyncio"
