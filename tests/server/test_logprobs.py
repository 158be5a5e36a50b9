"""Logprobs in both forms: one entry a token, trimmed with the text, bytes where text would lie."""

import math

import pytest

from scheduler.events import EmittedToken, Origin
from scheduler.plan import TokenLogprobs
from server.replies.logprobs import chat_logprobs, legacy_logprobs
from server.replies.spelling import OffsetCounter
from server.text.pieces import Pieces


@pytest.fixture
def pieces():
    return Pieces(
        table=(b"a", b" b", b"\xe2", b"\x82\xac", "é".encode(), b"a", b"<s>"),
        special=frozenset({6}),
    )


def emitted(token, logprob=-0.5, top=()):
    return EmittedToken(
        token=token,
        position=0,
        origin=Origin.PLAIN,
        target_prob=None,
        draft_prob=None,
        logprobs=TokenLogprobs(logprob=logprob, top=top),
    )


def test_legacy_columns(pieces):
    tokens = [emitted(0, -0.1, ((0, -0.1), (1, -2.0))), emitted(2), emitted(3), emitted(4)]
    offsets = OffsetCounter(pieces, 7, skip_special=True)
    columns = legacy_logprobs(tokens, pieces, offsets, 2)
    assert columns["tokens"] == ["a", r"bytes:\xe2", r"bytes:\x82\xac", "é"]
    assert columns["token_logprobs"] == [-0.1, -0.5, -0.5, -0.5]
    assert columns["top_logprobs"][0] == {"a": -0.1, " b": -2.0}
    assert columns["top_logprobs"][1] == {r"bytes:\xe2": -0.5}
    assert columns["text_offset"] == [7, 8, 8, 9]


def test_the_token_itself_is_listed_even_when_it_is_not_among_the_best(pieces):
    columns = legacy_logprobs(
        [emitted(4, -9.0, ((0, -0.1), (1, -0.2)))],
        pieces,
        OffsetCounter(pieces, 0, skip_special=True),
        2,
    )
    assert columns["top_logprobs"] == [{"a": -0.1, " b": -0.2, "é": -9.0}]


def test_of_two_ids_spelled_alike_the_better_one_is_shown(pieces):
    columns = legacy_logprobs(
        [emitted(1, -1.0, ((0, -0.1), (5, -0.2), (1, -1.0)))],
        pieces,
        OffsetCounter(pieces, 0, skip_special=True),
        3,
    )
    assert columns["top_logprobs"] == [{"a": -0.1, " b": -1.0}]


def test_offsets_pass_over_special_tokens_that_are_not_shown(pieces):
    for skip, second in ((True, 0), (False, 3)):
        offsets = OffsetCounter(pieces, 0, skip_special=skip)
        assert [offsets.advance(6), offsets.advance(0)] == [0, second]


def test_chat_rows(pieces):
    block = chat_logprobs([emitted(3, -0.3, ((3, -0.3), (4, -3.0)))], pieces, 1)
    spelled = r"bytes:\x82\xac"
    own = {"token": spelled, "logprob": -0.3, "bytes": [0x82, 0xAC]}
    assert block == {"content": [own | {"top_logprobs": [own]}], "refusal": None}


@pytest.mark.parametrize("impossible", [-math.inf, math.nan])
def test_json_has_no_infinity(pieces, impossible):
    row = chat_logprobs([emitted(0, impossible)], pieces, 0)["content"][0]
    assert (row["logprob"], row["top_logprobs"]) == (-9999.0, [])


@pytest.mark.parametrize(("wanted", "entries"), [(0, 1), (1, 1), (5, 5)])
def test_legacy_over_http(client, wanted, entries):
    body = client.post(
        "/v1/completions", json={"prompt": "x", "logprobs": wanted, "max_tokens": 40}
    ).json()
    columns = body["choices"][0]["logprobs"]
    assert {len(column) for column in columns.values()} == {body["usage"]["completion_tokens"]}
    assert {len(table) for table in columns["top_logprobs"]} == {entries}
    text, shown = body["choices"][0]["text"], zip(*_spelled(columns), strict=True)
    assert all(text[offset:].startswith(token) for token, offset in shown)


def _spelled(columns):
    pairs = zip(columns["tokens"], columns["text_offset"], strict=True)
    kept = [p for p in pairs if not p[0].startswith("bytes:") and p[0] != "</s>"]
    return [token for token, _ in kept], [offset for _, offset in kept]


@pytest.mark.parametrize(("top", "entries"), [(None, 0), (0, 0), (3, 3)])
def test_chat_over_http(client, top, entries):
    body = client.post(
        "/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "x"}],
            "logprobs": True,
            "top_logprobs": top,
            "max_tokens": 9,
        },
    ).json()
    choice = body["choices"][0]
    rows = choice["logprobs"]["content"]
    assert len(rows) == body["usage"]["completion_tokens"]
    assert {len(row["top_logprobs"]) for row in rows} == {entries}
    joined = b"".join(bytes(row["bytes"]) for row in rows).decode()
    assert joined == choice["message"]["content"]
