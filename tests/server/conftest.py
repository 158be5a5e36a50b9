"""One running server for all tests that do not change it, and clients of it."""

import httpx
import pytest

from tests.server.world import running


@pytest.fixture(scope="session")
def shared_world():
    with running() as world:
        yield world


@pytest.fixture
def world(shared_world):
    """The shared server; what a test made it say is forgotten afterwards."""
    yield shared_world
    shared_world.runner.scripts.clear()
    shared_world.runner.breaks_at.clear()


@pytest.fixture(scope="session")
def client(shared_world):
    with httpx.Client(base_url=shared_world.url, timeout=30) as client:
        yield client


@pytest.fixture
def anyio_backend():
    return "asyncio"
