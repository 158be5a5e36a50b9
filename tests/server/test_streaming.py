"""Streams, read from a real connection: order, ends, usage, and equality with the whole body."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.streams import events_of, text_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED = {
    COMPLETIONS: {"prompt": "x"},
    CHAT: {"messages": [{"role": "user", "content": "x"}], "max_tokens": 30},
}
USAGE = {"stream_options": {"include_usage": True}}


def stream(client, path, **fields):
    response = client.post(path, json=ASKED[path] | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    return events_of(response)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_one_identity_for_all_chunks(client, path):
    events = stream(client, path, **USAGE)
    for field in ("id", "object", "created", "model", "system_fingerprint"):
        assert len({event[field] for event in events}) == 1
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    assert events[0]["object"] == kind


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_last_text_comes_with_the_reason(client, path):
    events = stream(client, path, max_tokens=6, ignore_eos=True)
    reasons = [choice["finish_reason"] for event in events for choice in event["choices"]]
    assert reasons == [None] * (len(events) - 1) + ["length"]
    assert text_of([events[-1]])


def test_the_role_comes_once_and_with_the_first_text(client):
    events = stream(client, CHAT)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0]["role"] == "assistant"
    assert deltas[0]["content"]
    assert not any("role" in delta for delta in deltas[1:])


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_usage_chunk_is_the_last(client, path):
    events = stream(client, path, **USAGE)
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] > 0
    assert ["metrics" in event for event in events] == [False] * (len(events) - 1) + [True]


def test_without_usage_the_metrics_ride_on_the_last_chunk(client):
    events = stream(client, COMPLETIONS, n=2)
    assert not any("usage" in event for event in events)
    assert ["metrics" in event for event in events] == [False] * (len(events) - 1) + [True]


def test_continuous_usage_counts_up(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(client, COMPLETIONS, stream_options=options, max_tokens=12)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[0] >= 1
    assert counts[-2:] == [12, 12]


FIELDS = st.fixed_dictionaries(
    {
        "stop": st.lists(st.text("ab c🎉", min_size=1, max_size=2), max_size=2),
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 14),
        "speculation": st.fixed_dictionaries({"k": st.integers(0, 8)}),
    }
)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    path=st.sampled_from([COMPLETIONS, CHAT]),
    answer=st.text("ab cé🎉\n", min_size=1, max_size=12),
    fields=FIELDS,
)
def test_a_stream_says_what_the_body_says(world, client, path, answer, fields):
    for prompt in (world.prompt_ids("x"), world.ids("<s><|user|>\nx</s>\n<|assistant|>\n")):
        world.runner.scripts[prompt] = world.ids(answer)
    extras = {"return_token_ids": True, "logprobs": True if path == CHAT else 1}
    whole = client.post(path, json=ASKED[path] | fields | extras).json()
    events = stream(client, path, **fields, **extras, **USAGE)
    for choice in whole["choices"]:
        index = choice["index"]
        parts = [c for e in events for c in e["choices"] if c["index"] == index]
        text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        assert text_of(events, index) == text
        assert [t for p in parts for t in p["token_ids"]] == choice["token_ids"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        assert parts[-1]["stop_reason"] == choice["stop_reason"]
        field = "content" if path == CHAT else "tokens"
        joined = [entry for p in parts for entry in p["logprobs"][field]]
        assert joined == choice["logprobs"][field]
        if path == COMPLETIONS:
            offsets = [entry for p in parts for entry in p["logprobs"]["text_offset"]]
            assert offsets == choice["logprobs"]["text_offset"]
    assert events[-1]["usage"] == whole["usage"]


def test_prompt_ids_come_with_the_first_chunk(world, client):
    events = stream(client, COMPLETIONS, return_token_ids=True, n=2)
    first = [next(e for e in events if e["choices"][0]["index"] == i) for i in (0, 1)]
    ids = list(world.prompt_ids("x"))
    assert [event["choices"][0]["prompt_token_ids"] for event in first] == [ids, ids]
    assert sum("prompt_token_ids" in event["choices"][0] for event in events) == 2
    chat = stream(client, CHAT, return_token_ids=True)
    assert world.service.decode(chat[0]["prompt_token_ids"]).startswith("<s><|user|>")
    assert not any("prompt_token_ids" in event for event in chat[1:])


def test_echo_comes_before_the_first_text(client):
    events = stream(client, COMPLETIONS, prompt=["ab ", "cd "], echo=True)
    assert text_of(events, 0) == "ab The river runs down to the sea, naïve 🎉 and fa"
    assert text_of(events, 1).count("cd ") == 1


def test_an_empty_chunk_is_only_sent_when_it_is_the_first_or_last(world, client):
    world.script("held ", "abcdefgh")
    events = stream(client, COMPLETIONS, prompt="held ", stop=["abcdefghZ"], speculation={"k": 0})
    texts = [event["choices"][0]["text"] for event in events]
    assert texts == ["", "abcdefgh"]


def test_an_error_before_the_first_token_has_its_own_status(world, client):
    world.runner.breaks_at[world.prompt_ids("broken ")] = 0
    for streamed in (True, False):
        response = client.post(COMPLETIONS, json={"prompt": "broken ", "stream": streamed})
        assert response.status_code == 500
        error = response.json()["error"]
        assert error["type"] == "server_error"
        assert error["message"] == "the model gave no numbers"


def test_an_error_inside_a_stream_is_an_event_and_then_the_end(world, client):
    world.script("early ", "a long answer that takes several rounds")
    world.runner.breaks_at[world.prompt_ids("early ")] = 2
    events = stream(client, COMPLETIONS, prompt="early ", max_tokens=40)
    assert text_of(events[:-1])
    assert events[-1].keys() == {"error"}
    assert events[-1]["error"].keys() == {"message", "type", "param", "code"}
    assert events[-1]["error"]["message"] == "the model gave no numbers"
