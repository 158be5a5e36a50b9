"""What the answers say of themselves adds up to what the metrics page says of all of them."""

import httpx
import pytest

from server.api import ApiOptions
from server.translate import Wishes
from tests.server.streams import events_of
from tests.server.world import running
from tests.telemetry.conftest import Board

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LAST = {"stream": True, "stream_options": {"include_usage": True}}
CALLS = [
    (COMPLETIONS, {"prompt": "The river", "max_tokens": 9}),
    (COMPLETIONS, {"prompt": ["The sea", "def add"], "n": 2, "max_tokens": 7}),
    (COMPLETIONS, {"prompt": "The river runs", "max_tokens": 12, **LAST}),
    (COMPLETIONS, {"prompt": "x", "stop": ["sea"]}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 8, "speculation": {"k": 1}, **LAST}),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 8, "speculation": {"enabled": False}}),
    (COMPLETIONS, {"prompt": "river river river", "speculation": {"proposer": "ngram"}}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "temperature": 0}),
    (CHAT, {"messages": [{"role": "user", "content": "y"}], "n": 3, "max_tokens": 5, **LAST}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "speculation": {"verifier": "block"}}),
]
QUICK = {"x-slo-ttft-ms": "60000", "x-slo-tpot-ms": "60000"}
NEVER = {"x-slo-ttft-ms": "1e-6"}


@pytest.fixture(scope="module")
def answered():
    """(the last body of each call, metrics that were told what the engine's sink was)."""
    options = ApiOptions(wishes=Wishes(tpot=1e-12))
    with running(options=options) as world, httpx.Client(base_url=world.url, timeout=30) as client:
        bodies = [
            last(client.post(path, json=body, headers=QUICK if place % 2 else NEVER), body)
            for place, (path, body) in enumerate(CALLS)
        ]
    board = Board(k_max=8)
    for stats in world.sink.steps:
        board.sink.step(stats)
    assert world.sink.ended == []
    return bodies, board


def last(response, body):
    assert response.status_code == 200, response.text
    return events_of(response)[-1] if "stream" in body else response.json()


def choices(body):
    prompts = body.get("prompt", "one")
    return body.get("n", 1) * (len(prompts) if isinstance(prompts, list) else 1)


def test_tokens(answered):
    bodies, board = answered
    given = sum(body["usage"]["completion_tokens"] for body in bodies)
    assert board.value("tokens_committed_total", model="pair") == given
    assert board.alias("generation_tokens_total") == given
    prompts = sum(
        body["usage"]["prompt_tokens"] * call.get("n", 1)
        for body, (_, call) in zip(bodies, CALLS, strict=True)
    )
    assert board.value("prompt_tokens_total") == prompts  # once a choice
    ends = sum(choices(call) for _, call in CALLS)
    assert board.total("fencepost_requests_total") == ends
    assert board.value("inter_token_seconds_count") == given - ends


def test_speculation(answered):
    bodies, board = answered
    blocks = [body["metrics"].get("speculative_decoding", {}) for body in bodies]
    assert blocks.count({}) == 1

    def total(name):
        return sum(block.get(name, 0) for block in blocks)

    assert total("num_draft_tokens") == board.total("fencepost_spec_verified_total") > 0
    assert total("num_accepted_draft_tokens") == board.total("fencepost_spec_accepted_total") > 0
    assert total("num_spec_steps") == board.alias("spec_decode_num_drafts_total")
    for accepted in range(9):
        rounds = sum(
            sample.value
            for sample in board.samples("fencepost_spec_rounds_total")
            if sample.labels["k"] != "0" and sample.labels["accepted"] == str(accepted)
        )
        histograms = [block["acceptance_histogram"] for block in blocks if block]
        assert rounds == sum(histogram[accepted] for histogram in histograms)


def test_goodput(answered):
    """Every other call wishes for what is easily met; the others for what cannot be."""
    bodies, board = answered
    good = [body["usage"]["completion_tokens"] for body in bodies[1::2]]
    assert board.value("tokens_goodput_total", model="pair") == sum(good) > 0
    met = sum(choices(call) for _, call in CALLS[1::2])
    missed = sum(choices(call) for _, call in CALLS[::2])
    assert board.value("request_slo_total", outcome="met") == met
    # The server's own wish for a pace holds where a call names the other time only.
    assert board.value("request_slo_total", outcome="both") == missed
    assert board.total("fencepost_request_slo_total") == met + missed
