"""A client that leaves ends its requests at once, on both endpoints, streamed or not."""

import asyncio
import json
import logging
import socket
import struct
import time
from contextlib import closing

import httpx
import pytest
from starlette.responses import Response

from scheduler.request import FinishReason
from server.event_stream import EventStream
from server.middleware import FrontDoor
from tests.server.world import Outcomes, running

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


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_pipelined_request_behind_one_that_runs(own_world, caplog, path, streamed, started):
    """The connection ends while one request runs and a second one waits behind it."""
    own_world.runner.stops_after = 3 if started else 1
    with closing(connect(own_world)) as connection:
        for _ in range(2):
            send(connection, path, ASKED[path] | FOREVER | {"stream": streamed})
        assert own_world.runner.waits()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ended(own_world, 2)
    own_world.runner.open.set()
    assert own_world.outcomes.wait_for(lambda call: (call.route, call.status) == (path, 499))
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == []


CLOSED = "unable to perform operation on <TCPTransport closed=True>; the handler is closed"


async def _stream_of_two():
    yield b"data: 2\n\n"


async def _nothing():
    pass


def _whole():
    return Response(b"x")


def _streamed():
    return EventStream(b"data: 1\n\n", _stream_of_two(), _nothing)


async def _receive():
    await asyncio.Event().wait()


def outcome_of(answer, broken_at, problem):
    """Send `answer` over a connection that fails at one message; how the call ended."""
    outcomes, sent = Outcomes(), []

    async def send(message):
        if len(sent) == broken_at:
            raise problem
        sent.append(message)

    async def app(scope, receive, send):
        await answer()(scope, receive, send)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    door = FrontDoor(app, sink=outcomes, clock=time.monotonic)
    asyncio.run(door(scope, _receive, send))
    (call,) = outcomes.calls
    return call.status


@pytest.mark.parametrize("problem", [RuntimeError(CLOSED), ConnectionResetError(), OSError()])
@pytest.mark.parametrize(("answer", "messages"), [(_whole, 2), (_streamed, 4)])
def test_an_answer_that_cannot_be_sent_ends_quietly(answer, messages, problem, caplog):
    caplog.set_level(logging.DEBUG, "server")
    for broken_at in range(messages):
        assert outcome_of(answer, broken_at, problem) == 499
    assert [record.levelno for record in caplog.records] == [logging.DEBUG] * messages


@pytest.mark.parametrize("answer", [_whole, _streamed])
def test_a_mistake_of_the_server_in_sending_is_not_hidden(answer, caplog):
    assert outcome_of(answer, 1, RuntimeError("Expected ASGI message")) != 499
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
