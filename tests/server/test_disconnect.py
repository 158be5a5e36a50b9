"""A client that leaves ends its requests at once, on both endpoints, streamed or not."""

import json
import socket
from contextlib import closing

import httpx
import pytest

from scheduler.request import FinishReason
from tests.server.world import running

ASKED = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
FOREVER = {"max_tokens": 80, "ignore_eos": True, "n": 2}


@pytest.fixture
def own_world():
    with running() as world:
        yield world


@pytest.fixture
def own_client(own_world):
    with httpx.Client(base_url=own_world.url, timeout=20) as client:
        yield client


def connect(world):
    host, port = world.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def send(connection, path, body):
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)


def ended(world, count):
    """Whether `count` requests were aborted, and the engine holds nothing any more."""
    with world.sink.changed:
        done = world.sink.changed.wait_for(lambda: len(world.sink.ended) >= count, 10)
    assert done
    assert {stats.reason for stats in world.sink.ended} == {FinishReason.ABORT}
    load = world.engine.load()
    return (load.running, load.waiting) == (0, 0)


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("streamed", [False, True])
def test_leaving_before_the_first_token(own_world, path, streamed):
    own_world.runner.open.clear()
    with closing(connect(own_world)) as connection:
        send(connection, path, ASKED[path] | FOREVER | {"stream": streamed})
        assert own_world.runner.waits()
    assert ended(own_world, 2)
    own_world.runner.open.set()
    assert own_world.outcomes.wait_for(lambda call: (call.route, call.status) == (path, 499))


@pytest.mark.parametrize("path", ASKED)
def test_leaving_in_the_middle_of_a_stream(own_world, path):
    own_world.runner.stops_after = 3
    with closing(connect(own_world)) as connection:
        send(connection, path, ASKED[path] | FOREVER | {"stream": True})
        received = b""
        while b"data: " not in received:
            received += connection.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        assert own_world.runner.waits()
    assert ended(own_world, 2)
    own_world.runner.open.set()
    assert own_world.outcomes.wait_for(lambda call: (call.route, call.status) == (path, 499))


def test_leaving_in_the_middle_of_the_body(own_world):
    with closing(connect(own_world)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b'Content-Length: 100\r\n\r\n{"prompt"')
    assert own_world.outcomes.wait_for(lambda call: call.status == 499)
    assert own_world.sink.ended == []


def test_a_choice_that_breaks_ends_the_others(own_world, own_client):
    world, client = own_world, own_client
    world.runner.breaks_at[world.prompt_ids("bad ")] = 2
    body = {"prompt": ["bad ", "x"], "max_tokens": 80, "ignore_eos": True}
    assert client.post("/v1/completions", json=body).status_code == 500
    assert ended(world, 1)


def test_the_server_stopping_is_told_as_503(own_world, own_client):
    world, client = own_world, own_client
    world.runner.before_round = lambda: world.loop.call_soon_threadsafe(
        lambda: [world.engine.abort(number) for number in range(1, 9)]
    )
    response = client.post("/v1/completions", json={"prompt": "x", **FOREVER})
    assert response.status_code == 503
    assert response.headers["retry-after"]
