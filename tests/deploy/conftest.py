"""One running server with the embedded pair for all tests that only ask it."""

import pytest

from deploy.k6.local_server import local_server

QUICK = ("--profile-seconds", "1", "--cost-cache", "none", "--threads", "1")


@pytest.fixture(scope="session")
def server():
    """Its address."""
    with local_server(QUICK) as url:
        yield url
