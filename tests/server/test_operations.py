"""What operators ask: models, tokens, health, load, metrics, the OpenAPI page."""

import asyncio
import logging
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

from scheduler.engine import EngineHealth
from server.backend import Backend
from server.errors import ApiError
from server.flow import Flow
from tests.server.world import running


def test_models(client):
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert body["data"][0] == {
        "id": "pair",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "fencepost",
        "root": "fencepost/pair",
        "parent": None,
        "max_model_len": 96,
    }
    assert client.get("/v1/models/pair-alias").json()["id"] == "pair-alias"


def test_the_name_that_was_used_is_answered(client):
    for asked, answered in (("pair-alias", "pair-alias"), (None, "pair")):
        body = client.post("/v1/completions", json={"model": asked, "prompt": "x"}).json()
        assert body["model"] == answered


@pytest.mark.parametrize("text", ["", "naïve 🎉", "a\u0000b", "<s>x"])
def test_tokens_and_back(world, client, text):
    body = client.post(
        "/tokenize", json={"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    ).json()
    ids = list(world.ids(text))
    assert body["tokens"] == ids
    assert (body["count"], body["max_model_len"]) == (len(ids), 96)
    assert body["token_strs"] == world.tokenizer.convert_ids_to_tokens(ids)
    back = client.post("/detokenize", json={"tokens": ids}).json()
    assert back == {"prompt": text}


@pytest.mark.parametrize("count", [4000, 5000])
@pytest.mark.parametrize(
    ("path", "body", "worker"),
    [
        ("/tokenize", lambda n: {"prompt": "x" * n, "return_token_strs": True}, "_encode"),
        ("/tokenize", lambda n: {"prompt": "x y" * n, "return_token_strs": True}, "names"),
        ("/detokenize", lambda n: {"tokens": [9] * n}, "decode"),
        ("/v1/completions", lambda n: {"prompt": [9] * n, "echo": True}, "decode"),
    ],
)
def test_long_texts_are_handled_off_the_loop(world, client, monkeypatch, count, path, body, worker):
    threads = []
    done = getattr(world.service, worker)

    def noted(*arguments):
        threads.append(threading.get_ident())
        return done(*arguments)

    loop_thread = []
    world.call(lambda: loop_thread.append(threading.get_ident()))
    monkeypatch.setattr(world.service, worker, noted)
    assert client.post(path, json=body(count)).status_code in {200, 400}
    off_loop = count > 4096 or worker == "names"
    assert (threads[-1] != loop_thread[0]) == off_loop


def test_too_many_prompts_are_refused_before_they_are_read(world, client, monkeypatch):
    seen = []
    monkeypatch.setattr(world.service, "_encode", lambda *given: seen.append(given))
    assert client.post("/v1/completions", json={"prompt": ["x"] * 81}).status_code == 400
    body = {"messages": [{"role": "user", "content": "x"}], "n": 81}
    assert client.post("/v1/chat/completions", json=body).status_code == 400
    assert seen == []


@pytest.mark.parametrize(("age", "status"), [(0.0, 200), (120.0, 200), (120.1, 503)])
def test_an_engine_that_no_longer_comes_round_is_not_healthy(
    world, client, monkeypatch, age, status
):
    report = EngineHealth(alive=True, error=None, heartbeat_age=age)
    monkeypatch.setattr(world.engine, "health", lambda: report)
    assert client.get("/health").status_code == status


def test_a_runner_that_is_gone_makes_it_neither_ready_nor_healthy():
    with running() as world, httpx.Client(base_url=world.url) as client:
        paths = ("/ready", "/health")
        assert [client.get(path).status_code for path in paths] == [200, 200]
        world.runner.lost = "one of the pair's processes died"
        assert [client.get(path).status_code for path in paths] == [503, 503]
        asked = client.post("/v1/completions", json={"prompt": "x"})
        assert asked.status_code == 503
        assert "processes" not in asked.text


def test_how_long_a_round_may_take_can_be_set():
    engine = _Engine(alive=True)
    backend = Backend(heartbeat_seconds=5)
    backend.install(SimpleNamespace(engine=engine))
    for engine.heartbeat_age, healthy in ((5.0, True), (5.5, False)):
        assert backend.healthy is healthy


def test_probes_may_ask_for_the_head_alone():
    with running(load=False) as world, httpx.Client(base_url=world.url) as client:
        assert client.head("/health").status_code == 200
        response = client.head("/ready")
        assert (response.status_code, response.content) == (503, b"")
        world.call(lambda: world.backend.fail("no such model"))
        assert client.head("/health").status_code == 503


def test_a_drawn_seed_is_logged_with_the_id_of_the_call(client, caplog):
    caplog.set_level(logging.INFO, "server")
    headers = {"x-request-id": "mine-7"}
    client.post("/v1/completions", json={"prompt": "x", "seed": 4}, headers=headers)
    assert "mine-7" not in caplog.text
    client.post("/v1/completions", json={"prompt": "x", "n": 2}, headers=headers)
    (line,) = [one for one in caplog.messages if "seed=" in one]
    assert re.search(r"mine-7\b.*seed=-?\d+$", line)


def test_special_tokens_are_added_to_a_prompt_unless_refused(world, client):
    body = client.post("/tokenize", json={"prompt": "x"}).json()
    assert body["tokens"] == list(world.prompt_ids("x"))
    assert body["token_strs"] is None


def test_messages_are_tokenized_as_chat_does(world, client):
    messages = [{"role": "user", "content": "hello"}]
    counted = client.post("/tokenize", json={"messages": messages}).json()
    answered = client.post(
        "/v1/chat/completions",
        json={"messages": messages, "return_token_ids": True, "max_tokens": 1},
    ).json()
    assert counted["tokens"] == answered["prompt_token_ids"]
    more = client.post(
        "/tokenize",
        json={"messages": messages, "add_generation_prompt": False, "add_special_tokens": True},
    ).json()
    assert world.service.decode(more["tokens"]) == "<s><s><|user|>\nhello</s>"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_bad_token_bodies(client, path, body, param):
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


PROMPT, MESSAGES = {"prompt": "x"}, {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("body", "field", "value"),
    [
        *(
            (body, field, value)
            for body in (PROMPT, MESSAGES)
            for field, value in (
                ("tools", [{"type": "function"}]),
                ("chat_template", "{{ 1 }}"),
                ("media_io_kwargs", {}),
                ("mm_processor_kwargs", {}),
            )
        ),
        (PROMPT, "add_generation_prompt", True),
        (PROMPT, "continue_final_message", False),
        (PROMPT, "chat_template_kwargs", {}),
        (MESSAGES | {"add_generation_prompt": True}, "continue_final_message", True),
    ],
)
def test_what_tokenize_does_not_do_is_refused_by_name(client, body, field, value):
    error = client.post("/tokenize", json=body | {field: value}).json()["error"]
    assert error["param"] == field
    assert field in error["message"]
    without = client.post("/tokenize", json=body | {field: None})
    assert without.status_code == 200, without.text


def test_load_counts_what_runs_and_waits():
    with running(max_requests=1) as world, httpx.Client(base_url=world.url) as client:
        assert client.get("/load").json() == {"server_load": 0, "running": 0, "waiting": 0}
        world.runner.open.clear()
        with ThreadPoolExecutor(1) as pool:
            body = {"prompt": "x", "n": 3, "max_tokens": 2}
            answer = pool.submit(client.post, "/v1/completions", json=body)
            assert world.runner.waits()
            busy = httpx.get(f"{world.url}/load").json()
            world.runner.open.set()
            assert answer.result(20).status_code == 200
        assert busy == {"server_load": 3, "running": 1, "waiting": 2}


def test_metrics_are_rendered_as_the_scraper_asks(client):
    response = client.get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert response.headers["content-type"] == "text/x"
    assert response.text == "application/openmetrics-text"


def test_every_call_is_told_to_the_sink(world, client):
    world.outcomes.calls.clear()
    client.get("/v1/models/pair")
    client.get("/nowhere/secret")
    for known in (("GET", "/v1/models/{name:path}", 200), ("GET", "unknown", 404)):
        assert world.outcomes.wait_for(lambda c, k=known: (c.method, c.route, c.status) == k)
    assert all(call.seconds >= 0 for call in world.outcomes.calls)


def test_an_accident_is_a_500_without_internals(world, client, caplog):
    broken = world.service.names
    try:
        world.service.names = None
        response = client.post("/tokenize", json={"prompt": "x", "return_token_strs": True})
    finally:
        world.service.names = broken
    assert response.status_code == 500
    assert response.json()["error"]["message"] == (
        "The server had an error while processing the request."
    )
    assert response.headers["x-request-id"] in caplog.text


def test_the_page_describes_every_body_and_error(client):
    page = client.get("/openapi.json").json()
    names = set(page["components"]["schemas"])
    assert {"CompletionBody", "ChatBody", "TokenizeBody", "DetokenizeBody", "Error"} <= names
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        operation = page["paths"][path]["post"]
        assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        assert {"200", "400", "401", "404", "413", "415", "500", "503"} <= set(
            operation["responses"]
        )
    operations = [one for methods in page["paths"].values() for one in methods.values()]
    assert not any("422" in operation["responses"] for operation in operations)
    for name in _references(page):
        assert name.removeprefix("#/components/schemas/") in names


def _references(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


class _Ended:
    """A source that ends without a finish."""

    request_id = 1

    async def __anext__(self):
        raise StopAsyncIteration


class _Engine:
    """Just enough of an engine for a flow."""

    def __init__(self, alive):
        self.alive = alive
        self.error = "a secret"
        self.aborted = []

    def health(self):
        return self

    def abort(self, request_id):
        self.aborted.append(request_id)


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize(("alive", "status"), [(True, 503), (False, 500)])
def test_a_source_that_ends_early_says_why(alive, status, sources):
    engine = _Engine(alive)

    async def read():
        flow = Flow(engine, [_Ended() for _ in range(sources)])
        try:
            await flow.next()
        finally:
            await flow.close()

    with pytest.raises(ApiError) as ended:
        asyncio.run(read())
    assert ended.value.problem.status == status
    assert "secret" not in ended.value.problem.message
    assert engine.aborted == [1] * sources
