"""Every fault of a client gets its own status and always the same four keys."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from scheduler.errors import ContextOverflow, EngineBusy, EngineError, RequestRefused
from server.api import ApiOptions
from server.errors import capped, from_engine
from server.protocol.chat import ChatBody
from server.protocol.completions import CompletionBody
from server.protocol.tokens import DetokenizeBody, TokenizeBody
from tests.server.world import running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PATHS = [COMPLETIONS, CHAT, "/tokenize", "/detokenize"]
JSON = {"content-type": "application/json"}


def check(response, status, *, code=None, param=None):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert (error["code"], error["param"]) == (code, param)
    assert response.headers["x-request-id"]
    assert int(response.headers["openai-processing-ms"]) >= 0


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"5", b"null", b'"x"', b"{} {}", b'{"prompt": "\xff"}', b"\x00"),
        *(b'{"prompt": "\\ud800"}', b'{"x": %s}' % (b"9" * 5000), b"[" * 5000, b"{" * 5000),
        b'{"x":' * 300 + b"1" + b"}" * 300,
        b"\xef\xbb\xbf{}",
    ],
)
def test_what_is_no_json_object(client, path, body):
    check(client.post(path, content=body, headers=JSON), 400)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
def test_numbers_that_are_none(client, number):
    body = f'{{"prompt": "x", "temperature": {number}}}'
    check(client.post(COMPLETIONS, content=body, headers=JSON), 400, param="temperature")
    bias = f'{{"prompt": "x", "logit_bias": {{"5": {number}}}}}'
    check(client.post(COMPLETIONS, content=bias, headers=JSON), 400, param="logit_bias.5")
    unknown = f'{{"prompt": "x", "unknown": {number}}}'
    assert client.post(COMPLETIONS, content=unknown, headers=JSON).status_code == 200


def test_huge_integers_are_only_out_of_range(client):
    for field in ("max_tokens", "seed", "n", "top_k", "min_tokens", "priority"):
        body = f'{{"prompt": "x", "{field}": {"9" * 400}}}'
        status = client.post(COMPLETIONS, content=body, headers=JSON).status_code
        assert status in (200, 400)
    body = f'{{"prompt": [{"9" * 400}]}}'
    check(client.post(COMPLETIONS, content=body, headers=JSON), 400, param="prompt")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "x"])
def test_other_content_types(client, kind):
    response = client.post(COMPLETIONS, content=b"{}", headers={"content-type": kind})
    check(response, 415, code="unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "application/x+json", None])
def test_json_content_types(client, kind):
    headers = {} if kind is None else {"content-type": kind}
    response = client.post(COMPLETIONS, content=b'{"prompt": "x"}', headers=headers)
    assert response.status_code == 200


def test_unknown_models_routes_and_methods(client):
    messages = {"messages": [{"role": "user", "content": "x"}]}
    for path, asked in ((COMPLETIONS, {"prompt": "x"}), (CHAT, messages)):
        check(
            client.post(path, json=asked | {"model": "nobody"}),
            404,
            code="model_not_found",
            param="model",
        )
    check(client.get("/v1/models/nobody"), 404, code="model_not_found", param="model")
    check(client.get("/v1/nothing"), 404, code="unknown_url")
    response = client.get(COMPLETIONS)
    check(response, 405, code="method_not_supported")
    assert response.headers["allow"] == "POST"


def test_little_is_echoed(client):
    response = client.post(COMPLETIONS, json={"model": "m" * 100_000, "prompt": "x"})
    assert len(response.content) < 1000
    response = client.post(COMPLETIONS, json={"prompt": "x", "logit_bias": {"k" * 100_000: 1}})
    assert len(response.content) < 1000
    response = client.post(COMPLETIONS, json={"prompt": "x", "metadata": {"k" * 100_000: 1}})
    assert len(response.content) < 1000
    assert capped("x" * 200) == "x" * 200
    assert capped("x" * 201) == "x" * 200 + "..."


@pytest.mark.parametrize(
    ("given_id", "kept"),
    [("abc-1.2_3:4", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False)],
)
def test_request_ids_are_kept_if_they_are_harmless(client, given_id, kept):
    response = client.get("/version", headers={"x-request-id": given_id})
    assert (response.headers["x-request-id"] == given_id) is kept
    assert response.headers["x-request-id"]


def test_bodies_above_the_limit():
    with (
        running(options=ApiOptions(body_limit=1000)) as world,
        httpx.Client(base_url=world.url) as client,
    ):
        assert client.post(COMPLETIONS, json={"prompt": "x" * 30}).status_code == 200
        large = b'{"prompt": "' + b"x" * 1000 + b'"}'
        check(client.post(COMPLETIONS, content=large, headers=JSON), 413, code="request_too_large")
        pieces = (large[i : i + 100] for i in range(0, len(large), 100))
        response = client.post(COMPLETIONS, content=pieces, headers=JSON)
        check(response, 413, code="request_too_large")


def test_a_body_that_is_announced_as_too_large_is_not_waited_for(world):
    host, port = world.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_api_keys():
    with (
        running(options=ApiOptions(api_keys=("first", "sécond"))) as world,
        httpx.Client(base_url=world.url) as client,
    ):
        for key in (b"first", "sécond".encode()):
            for scheme in (b"Bearer ", b"bearer "):
                headers = {"authorization": scheme + key}
                assert client.get("/v1/models", headers=headers).status_code == 200
        wrong = (None, b"Bearer third", b"Bearer", b"Basic first", b"first", b"Bearer \xff")
        for header in wrong:
            headers = {} if header is None else {"authorization": header}
            for path in ("/v1/models", "/v1/nothing", "/v1"):
                check(client.get(path, headers=headers), 401, code="invalid_api_key")
            response = client.post(COMPLETIONS, content=b"not json", headers=headers)
            check(response, 401, code="invalid_api_key")
        for path in ("/health", "/ready", "/metrics", "/version"):
            assert client.get(path).status_code == 200


def test_a_full_queue_asks_to_come_back():
    with (
        running(max_requests=1, max_waiting=1) as world,
        httpx.Client(base_url=world.url, timeout=30) as client,
    ):
        world.runner.open.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(httpx.post, world.url + COMPLETIONS, json={"prompt": "x"})
            assert world.runner.waits()
            response = client.post(COMPLETIONS, json={"prompt": "x", "n": 2})
            world.runner.open.set()
            assert first.result(20).status_code == 200
        check(response, 503, code="service_unavailable")
        assert int(response.headers["retry-after"]) >= 1
        check(client.post(COMPLETIONS, json={"prompt": "x", "n": 3}), 400, param="n")


def test_loading_and_draining_ask_to_come_back():
    with running(load=False) as world, httpx.Client(base_url=world.url) as client:
        assert client.get("/health").status_code == 200
        for method, path in (("GET", "/v1/models"), ("GET", "/load"), ("POST", COMPLETIONS)):
            response = client.request(method, path, json={"prompt": "x"})
            check(response, 503, code="service_unavailable")
            assert response.headers["retry-after"]
        assert client.get("/ready").status_code == 503
        world.call(lambda: world.backend.fail("no such model"))
        assert client.get("/health").status_code == 503


def test_draining_asks_to_come_back():
    with running() as world, httpx.Client(base_url=world.url) as client:
        assert client.get("/ready").status_code == 200
        stopped = asyncio.run_coroutine_threadsafe(world.engine.stop(), world.loop)
        stopped.result(10)
        assert client.get("/ready").status_code == 503
        check(client.post(COMPLETIONS, json={"prompt": "x"}), 503, code="service_unavailable")


@pytest.mark.parametrize(
    ("problem", "status", "param"),
    [
        (RequestRefused("top_p", "top_p: no"), 400, "top_p"),
        (ContextOverflow("prompt", "too long"), 400, None),
        (EngineBusy("full"), 503, None),
        (EngineError("a secret"), 500, None),
    ],
)
def test_what_the_engine_refuses(problem, status, param):
    found = from_engine(problem, 96).problem
    assert (found.status, found.param) == (status, param)
    assert "secret" not in found.message
    assert (found.retry_after is not None) == (status == 503)


BODIES = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
GATHERED = ("list", "tuple", "set", "frozenset", "dict", "generator")


def gathered(schema, place=""):
    """Each list and mapping in the core schema of a body, with the way to it."""
    if isinstance(schema, dict):
        if schema.get("type") in GATHERED:
            yield place, schema
        for key, part in schema.items():
            if key not in {"json_schema_input_schema", "serialization"}:  # neither checks a body
                yield from gathered(part, f"{place}.{key}" if key != "schema" else place)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            yield from gathered(part, place)


def can_be_wrong(schema):
    anything = {"type": "any"}
    parts = (schema.get(f"{part}_schema", anything) for part in ("items", "values"))
    return any(part != anything for part in parts)


@pytest.mark.parametrize("body", BODIES)
def test_every_list_and_mapping_of_the_protocol_stops_at_its_first_error(body):
    """However long it is: errors are built one by one, by code that lets nobody else run."""
    found = [each for each in gathered(body.__pydantic_core_schema__) if can_be_wrong(each[1])]
    assert found
    assert [place for place, schema in found if not schema.get("fail_fast")] == []


@pytest.mark.parametrize("element", [1, [], {}, None, "x", -1, [[]], [{"a": 1}]])
@pytest.mark.parametrize("body", BODIES)
def test_errors_are_as_many_as_fields_and_no_more(body, element):
    for field in body.model_fields:
        for value in ([element] * 999, dict.fromkeys(map(str, range(999)), element)):
            with pytest.raises(ValidationError) as refused:
                body.model_validate_json(_json({"model": 5} | {field: value}))
            assert refused.value.error_count() < 20


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "text", "user", "token", "json_object", "5", ""])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "k", "enabled", "5"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
NAMES = [
    *(
        "model",
        "prompt",
        "messages",
        "n",
        "best_of",
        "stop",
        "stop_token_ids",
        "seed",
        "max_tokens",
    ),
    *("max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "logprobs"),
    *("presence_penalty", "repetition_penalty", "logit_bias", "top_logprobs", "stream", "metadata"),
    *("stream_options", "priority", "truncate_prompt_tokens", "speculation", "response_format"),
    *("tools", "tool_choice", "chat_template_kwargs", "echo", "suffix", "add_generation_prompt"),
    *("continue_final_message", "tokens", "add_special_tokens", "unknown"),
]


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    path=st.sampled_from(PATHS), body=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)
)
def test_any_json_body_is_answered_below_500(client, path, body):
    assert client.post(path, content=_json(body), headers=JSON).status_code < 500


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(chat=st.booleans(), fields=st.dictionaries(st.sampled_from(NAMES[3:]), VALUES, max_size=2))
def test_any_field_beside_a_good_prompt_is_answered_below_500(client, chat, fields):
    good = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    body = {"max_tokens": 2} | fields | good
    response = client.post(CHAT if chat else COMPLETIONS, content=_json(body), headers=JSON)
    assert response.status_code in (200, 400, 404)


def _json(body):
    return json.dumps(body).encode()
