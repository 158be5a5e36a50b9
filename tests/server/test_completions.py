"""The body of /v1/completions: text, tokens, stops, budgets and what the extras add."""

import pytest

from tests.server.world import CONTEXT, DEFAULT

PATH = "/v1/completions"


def post(client, **fields):
    response = client.post(PATH, json={"model": "pair"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_the_whole_body(world, client):
    prompt = world.script("Tell me. ", "It runs.")
    body = post(client, prompt=prompt, max_tokens=50)
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["model"] == "pair"
    assert body["system_fingerprint"] == "fencepost-test-0"
    answer = world.ids("It runs.")
    assert body["choices"] == [
        {
            "index": 0,
            "text": "It runs.",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    prompt_tokens = len(world.prompt_ids(prompt))
    assert body["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(answer) + 1,
        "total_tokens": prompt_tokens + len(answer) + 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_sixteen_tokens_unless_told_otherwise(client):
    body = post(client, prompt="x", ignore_eos=True)
    assert body["usage"]["completion_tokens"] == 16
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("most", range(1, 10))
def test_exactly_max_tokens(world, client, most):
    body = post(client, prompt="x", max_tokens=most, return_token_ids=True)
    expected = world.ids(DEFAULT)[:most]
    assert body["usage"]["completion_tokens"] == most
    assert body["choices"][0]["token_ids"] == list(expected)


def test_the_context_ends_an_answer(client):
    prompt = [5] * (CONTEXT - 6)
    body = post(client, prompt=prompt, max_tokens=64, ignore_eos=True)
    assert body["usage"]["total_tokens"] == CONTEXT
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_prompt_without_room_is_refused(client):
    fits = client.post(PATH, json={"prompt": [5] * (CONTEXT - 1)})
    assert fits.json()["usage"]["completion_tokens"] == 1
    response = client.post(PATH, json={"prompt": [5] * CONTEXT})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"This model's maximum context length is {CONTEXT} tokens" in error["message"]


def test_truncation_keeps_the_end_of_the_prompt(client):
    asked = {"prompt": list(range(6, 200)), "return_token_ids": True, "max_tokens": 1}
    kept = post(client, **asked, truncate_prompt_tokens=3)["choices"][0]["prompt_token_ids"]
    assert kept == [197, 198, 199]
    whole = post(client, **asked, truncate_prompt_tokens=-1)["choices"][0]["prompt_token_ids"]
    assert whole == list(range(200 - CONTEXT + 1, 200))


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_text_and_tokens(world, client, include):
    world.script("stops ", "one two END three")
    body = post(
        client,
        prompt="stops ",
        max_tokens=40,
        stop=["END", "three"],
        include_stop_str_in_output=include,
        logprobs=1,
        return_token_ids=True,
    )
    choice = body["choices"][0]
    assert choice["text"] == ("one two END" if include else "one two ")
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "END")
    through = world.ids("one two END")
    assert choice["token_ids"] == list(through)
    assert len(choice["logprobs"]["tokens"]) == len(through) == body["usage"]["completion_tokens"]


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abc")])
def test_a_stop_id_ends_the_text_before_it(world, client, include, text):
    world.script("ids ", "abcd")
    a, b, c, _ = world.ids("abcd")
    body = post(
        client,
        prompt="ids ",
        stop_token_ids=[c],
        include_stop_str_in_output=include,
        return_token_ids=True,
    )
    choice = body["choices"][0]
    assert (choice["text"], choice["stop_reason"]) == (text, c)
    assert choice["token_ids"] == [a, b, c]


def test_special_tokens_are_written_out_on_request(world, client):
    world.script("end ", "a")
    asked = {"prompt": "end ", "include_stop_str_in_output": True}
    assert post(client, **asked)["choices"][0]["text"] == "a"
    assert post(client, **asked, skip_special_tokens=False)["choices"][0]["text"] == "a</s>"


def test_several_prompts_and_choices_keep_their_order(world, client):
    for name in ("p1 ", "p2 "):
        world.script(name, f"answer to {name}")
    body = post(client, prompt=["p1 ", "p2 "], n=2, max_tokens=40, return_token_ids=True)
    choices = body["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    assert [c["text"] for c in choices] == ["answer to p1 "] * 2 + ["answer to p2 "] * 2
    assert [tuple(c["prompt_token_ids"]) for c in choices] == [
        world.prompt_ids(p) for p in ("p1 ", "p1 ", "p2 ", "p2 ")
    ]
    usage = body["usage"]
    assert usage["prompt_tokens"] == sum(len(world.prompt_ids(p)) for p in ("p1 ", "p2 "))
    assert usage["completion_tokens"] == sum(len(c["token_ids"]) for c in choices)


def test_echo_gives_the_prompt_as_it_was_sent(world, client):
    assert post(client, prompt="naïve ", echo=True)["choices"][0]["text"].startswith("naïve The")
    ids = list(world.prompt_ids("river "))
    assert post(client, prompt=ids, echo=True)["choices"][0]["text"].startswith("<s>river The")
    short = post(client, prompt="river ", echo=True, truncate_prompt_tokens=1)
    assert short["choices"][0]["text"].startswith(world.tokenizer.decode(ids[-1:]) + "The")


def test_the_empty_prompt_begins_with_the_begin_mark(world, client):
    body = post(client, prompt="", return_token_ids=True)
    assert body["choices"][0]["prompt_token_ids"] == [world.tokenizer.bos_token_id]
    bare = post(client, prompt="", add_special_tokens=False, return_token_ids=True)
    assert bare["choices"][0]["prompt_token_ids"] == [world.tokenizer.bos_token_id]


def test_provenance_tells_where_each_token_came_from(world, client):
    body = post(client, prompt="x", max_tokens=12, return_provenance=True, return_token_ids=True)
    rows = body["choices"][0]["provenance"]
    start = len(world.prompt_ids("x"))
    assert [row["position"] for row in rows] == list(range(start, start + 12))
    assert {row["origin"] for row in rows} <= {"draft", "correction", "bonus", "plain"}
    drafts = sum(row["origin"] == "draft" for row in rows)
    assert drafts == body["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
    for row in rows:
        assert (row["p"], row["q"]) == ((0.5, 0.25) if row["origin"] == "draft" else (None, None))


def test_nothing_extra_unless_asked_for(client):
    assert client.post(PATH, json={"prompt": "x"}).json()["choices"][0].keys() == {
        *("index", "text", "logprobs", "finish_reason", "stop_reason")
    }


def test_statistics_add_up(client):
    body = post(client, prompt="x", n=2, max_tokens=17, speculation={"k": 3})
    block = body["metrics"]["speculative_decoding"]
    histogram = block["acceptance_histogram"]
    assert len(histogram) == block["num_spec_tokens"] + 1 == 9
    assert sum(histogram) == block["num_spec_steps"] > 0
    accepted = sum(length * count for length, count in enumerate(histogram))
    assert accepted == block["num_accepted_draft_tokens"] <= block["num_draft_tokens"]
    rate = accepted / block["num_draft_tokens"]
    assert block["draft_acceptance_rate"] == pytest.approx(rate, abs=1e-5)
    length = 1 + accepted / block["num_spec_steps"]
    assert block["mean_acceptance_length"] == pytest.approx(length, abs=1e-5)
    times = {k: v for k, v in body["metrics"].items() if k != "speculative_decoding"}
    assert times.keys() == {
        *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms"),
        "tokens_per_second",
    }
    assert all(value >= 0 for value in times.values())


def test_no_statistics_of_speculation_when_it_is_off(client):
    body = post(client, prompt="x", speculation={"enabled": False}, return_provenance=True)
    assert "speculative_decoding" not in body["metrics"]
    assert {row["origin"] for row in body["choices"][0]["provenance"]} == {"plain"}
    assert "completion_tokens_details" not in body["usage"]
