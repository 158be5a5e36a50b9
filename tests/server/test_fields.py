"""Every field of OpenAI's two endpoints, and the extras, is honoured or refused by name."""

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import ValidationError

from server.protocol.chat import ChatBody
from server.protocol.completions import CompletionBody

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MINIMAL = {
    COMPLETIONS: {"prompt": "The ", "max_tokens": 2},
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
}
TEXT = {"type": "text"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}

# Field: values that are taken.
SHARED_TAKEN = {
    "model": ["pair", "pair-alias", None],
    "n": [1, 2, None],
    "stop": ["x", ["x"], ["a", "b", "c", "d"], ["x" * 1024], [], None],
    "stop_token_ids": [[1, 5], [5, 5], [7] * 256, [], None],
    "include_stop_str_in_output": [True, False, None],
    "skip_special_tokens": [True, False, None],
    "add_special_tokens": [True, False, None],
    "seed": [0, -1, 2**63 - 1, -(2**63), None],
    "max_tokens": [1, 10**6, None],
    "ignore_eos": [True, False, None],
    "min_tokens": [0, 2, None],
    "temperature": [0, 0.0, 1, 2, 1e-9, None],
    "top_p": [1e-9, 0.5, 1, None],
    "top_k": [-1, 0, 1, 10**6, None],
    "min_p": [0, 0.5, 1, None],
    "presence_penalty": [-2, 2, 0.5, None],
    "frequency_penalty": [-2, 2, 0.5, None],
    "repetition_penalty": [1, 1.3, 0.5, 0.01, 10, None],
    "logit_bias": [{}, {"5": 100}, {"5": -100.0, "7": 1}, None],
    "safety_identifier": ["id", None],
    "session_id": ["id", None],
    "include_reasoning": [True, None],
    "mm_payload": ["tensors", "none", None],
    "return_mm_kwargs": [True, False, None],
    **{name: [False, None] for name in ("return_prompt_text", "return_token_offsets")},
    "routed_experts_prompt_start": [0, None],
    "watermarking": [False, None],
    "prompt_cache_key": ["key", None],
    "prompt_cache_retention": ["24h", None],
    "prompt_cache_options": [{}, None],
    "parallel_tool_calls": [True, None],
    "modalities": [["text"], None],
    "reasoning_effort": ["none", None],
    "service_tier": ["auto", "default", None],
    "store": [False, None],
    "tool_choice": ["none", None],
    "function_call": ["none", None],
    "verbosity": ["medium", None],
    "stream": [False, None],
    "stream_options": [None],
    "user": ["u", None],
    "metadata": [{}, {"domain": "code"}, {"domain": "nobody knows"}, None],
    "priority": [0, -5, 5, None],
    "truncate_prompt_tokens": [-1, 1, 500, None],
    "return_token_ids": [True, False, None],
    "return_provenance": [True, False, None],
    "cache_salt": ["salt", None],
    "response_format": [TEXT, None],
    "speculation": [
        *({}, {"enabled": False}, {"k": 0}, {"k": 8}, {"k": "auto"}, None),
        *({"verifier": "token"}, {"verifier": "block"}, {"verifier": "shared-noise"}),
        *({"proposer": "auto"}, {"proposer": "draft_model"}, {"proposer": "ngram"}),
        *({"min_confidence": 0}, {"min_confidence": 0.99}, {"min_confidence": None}),
    ],
    "a field nobody knows": [1, {"x": [1]}, None],
}
TAKEN = {
    COMPLETIONS: SHARED_TAKEN
    | {
        "prompt": ["", "x", ["x", "y"], [5, 6], [[5], [6, 7]], "\u0000"],
        "best_of": [1, None],
        "echo": [True, False, None],
        "logprobs": [0, 20, None],
        "suffix": ["", None],
    },
    CHAT: SHARED_TAKEN
    | {
        "messages": [
            [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}],
            [{"role": "developer", "content": "d"}, {"role": "user", "content": ""}],
            [{"role": "user", "content": [TEXT | {"text": "a"}, TEXT | {"text": "b"}]}],
            [{"role": "user", "content": "u", "name": "ann"}],
            [{"role": "assistant", "content": "a", "tool_calls": None, "refusal": None}],
        ],
        "max_completion_tokens": [1, 10**6, None],
        "logprobs": [True, False, None],
        "top_logprobs": [0, None],
        "add_generation_prompt": [True, False, None],
        "continue_final_message": [False, None],
        "chat_template_kwargs": [{}, {"anything": [1]}, None],
        "suffix": ["", None],
        "echo": [False, None],
        "best_of": [1, None],
    },
}

# Field: (value, the path that the answer must name).
SHARED_REFUSED = {
    "n": [(0, "n"), (129, "n"), (1.0, "n"), (True, "n"), ("1", "n")],
    "stop": [
        *(("", "stop"), (["a"] * 5, "stop"), ([""], "stop"), (5, "stop"), (["a", 5], "stop")),
        *(("x" * 1025, "stop"), (["a", "x" * 1025], "stop")),
    ],
    "stop_token_ids": [
        *(([-1], "stop_token_ids"), ([10**6], "stop_token_ids"), (["a"], "stop")),
        *((list(range(257)), "stop_token_ids"), ([7] * 257, "stop_token_ids")),
    ],
    "seed": [(2**63, "seed"), (-(2**63) - 1, "seed"), (1.5, "seed"), ("1", "seed")],
    "max_tokens": [(0, "max_tokens"), (-1, "max_tokens"), (1.5, "max_tokens")],
    "min_tokens": [(-1, "min_tokens"), (3, "min_tokens")],
    "temperature": [(-0.1, "temperature"), (2.1, "temperature"), ("hot", "temperature")],
    "top_p": [(0, "top_p"), (1.1, "top_p"), (False, "top_p")],
    "top_k": [(-2, "top_k"), (1.5, "top_k")],
    "min_p": [(-0.1, "min_p"), (1.1, "min_p")],
    "presence_penalty": [(2.1, "presence_penalty"), (-2.1, "presence_penalty")],
    "frequency_penalty": [(9, "frequency_penalty"), (-2.1, "frequency_penalty")],
    "repetition_penalty": [
        *((0, "repetition_penalty"), (-1, "repetition_penalty"), (1e-39, "repetition_penalty")),
        *((0.0099, "repetition_penalty"), (10.1, "repetition_penalty")),
    ],
    "logit_bias": [
        *(({"5": 101}, "logit_bias.5"), ({"x": 1}, "logit_bias"), ({"-1": 1}, "logit_bias")),
        *(({"99999": 1}, "logit_bias"), ([1], "logit_bias"), ({"\u0665": 1}, "logit_bias")),
        *(({"01": 1, "1": 1}, "logit_bias"), ({"0": 1, "00": 2}, "logit_bias")),
    ],
    "stream": [("yes", "stream"), (1, "stream")],
    "stream_options": [({"include_usage": True}, "stream_options"), ([], "stream_options")],
    "model": [(5, "model")],
    "user": [(5, "user")],
    "metadata": [
        ({"domain": 5}, "metadata.domain"),
        ({str(i): "" for i in range(17)}, "metadata"),
        ({"k" * 65: "v"}, "metadata"),
        ({"k": "v" * 513}, "metadata.k"),
    ],
    "priority": [("high", "priority"), (2**63, "priority")],
    "truncate_prompt_tokens": [(0, "truncate_prompt_tokens"), (-2, "truncate_prompt_tokens")],
    "truncation_side": [("right", "truncation_side")],
    "speculation": [
        *(({"k": 9}, "speculation.k"), ({"k": -1}, "speculation.k"), (True, "speculation")),
        *(({"k": "many"}, "speculation.k"), ({"enabled": 1}, "speculation.enabled")),
        *(({"min_confidence": c}, "speculation.min_confidence") for c in (1, -0.1, "high")),
        ({"proposer": "suffix"}, "speculation.proposer"),
        ({"verifier": "typical"}, "speculation.verifier"),
    ],
    "response_format": [
        *(({"type": "json_object"}, "response_format.type"), (SCHEMA, "response_format.type")),
        *(({"type": "sound"}, "response_format.type"), ({}, "response_format.type")),
    ],
    "structured_outputs": [({"choice": ["a"]}, "structured_outputs")],
    "allowed_token_ids": [([1], "allowed_token_ids")],
    "bad_words": [(["a"], "bad_words")],
    "prompt_logprobs": [(0, "prompt_logprobs")],
    "logprob_token_ids": [([1], "logprob_token_ids")],
    "logits_processors": [([], "logits_processors")],
    "use_beam_search": [(True, "use_beam_search")],
    "length_penalty": [(2.0, "length_penalty")],
    "spaces_between_special_tokens": [(False, "spaces_between_special_tokens")],
    "return_tokens_as_token_ids": [(True, "return_tokens_as_token_ids")],
    "thinking_token_budget": [(5, "thinking_token_budget")],
    "stream_interval": [(4, "stream_interval")],
    **{name: [({}, name)] for name in ("guided_json", "guided_regex", "guided_choice")},
    **{name: [("x", name)] for name in ("guided_grammar", "regex", "ebnf", "json_schema")},
    "lora_path": [("x", "lora_path")],
    "chat_template": [("{{ 1 }}", "chat_template")],
    "documents": [([{}], "documents")],
    "tools": [([TOOL], "tools"), ([], "tools")],
    "tool_choice": [("auto", "tool_choice"), ("required", "tool_choice"), (TOOL, "tool_choice")],
    "functions": [([], "functions"), ([{"name": "f"}], "functions")],
    "function_call": [("auto", "function_call"), ({"name": "f"}, "function_call")],
    "audio": [({"voice": "x"}, "audio")],
    "modalities": [(["text", "audio"], "modalities")],
    "moderation": [({}, "moderation")],
    "prediction": [({"type": "content", "content": "x"}, "prediction")],
    "reasoning_effort": [("low", "reasoning_effort")],
    "service_tier": [("flex", "service_tier")],
    "store": [(True, "store")],
    "verbosity": [("low", "verbosity")],
    "web_search_options": [({}, "web_search_options")],
    "mm_processor_kwargs": [({}, "mm_processor_kwargs")],
    "prompt_embeds": [("x", "prompt_embeds")],
    "suffix": [("x", "suffix")],
    **{name: [({}, name), ({"a": 1}, name)] for name in ("kv_transfer_params", "vllm_xargs")},
    **{name: [({}, name)] for name in ("ec_transfer_params", "media_io_kwargs")},
    "repetition_detection": [({"max_pattern_size": 2}, "repetition_detection")],
    "include_reasoning": [(False, "include_reasoning")],
    "mm_payload": [("all", "mm_payload")],
    "request_id": [("x", "request_id")],
    **{name: [(True, name)] for name in ("return_prompt_text", "return_token_offsets")},
    "routed_experts_prompt_start": [(1, "routed_experts_prompt_start")],
    "watermarking": [(True, "watermarking")],
}
MESSAGE = {"role": "user", "content": "x"}
REFUSED = {
    COMPLETIONS: SHARED_REFUSED
    | {
        "prompt": [
            *((None, "prompt"), ([], "prompt"), ([[]], "prompt"), (5, "prompt")),
            *(([1, "a"], "prompt"), ([1.5], "prompt"), ([True], "prompt"), ([-1], "prompt")),
            *(([10**6], "prompt"), ({"a": 1}, "prompt"), (["x"] * 2049, "prompt")),
        ],
        "best_of": [(2, "best_of")],
        "echo": [("yes", "echo")],
        "logprobs": [(-1, "logprobs"), (21, "logprobs"), (True, "logprobs")],
        "messages": [([], "messages"), ([MESSAGE], "messages")],
        "max_completion_tokens": [(5, "max_completion_tokens")],
        "top_logprobs": [(0, "top_logprobs"), (3, "top_logprobs")],
        "add_generation_prompt": [(True, "add_generation_prompt")],
        "continue_final_message": [(True, "continue_final_message")],
        "chat_template_kwargs": [({"a": 1}, "chat_template_kwargs")],
    },
    CHAT: SHARED_REFUSED
    | {
        "prompt": [("x", "prompt"), ([], "prompt"), ([5], "prompt")],
        "messages": [
            *((None, "messages"), ([], "messages"), ("hi", "messages"), ([5], "messages[0]")),
            ([MESSAGE, {"role": "tool", "content": "x"}], "messages[1].role"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": None}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content"),
            ([{"role": "user", "content": [TEXT | {"text": 5}]}], "messages[0].content"),
            ([{"role": "user", "content": ["x"]}], "messages[0].content"),
            ([MESSAGE | {"tool_calls": [{}]}], "messages[0].tool_calls"),
            ([MESSAGE | {"audio": {"id": "x"}}], "messages[0].audio"),
            ([MESSAGE | {"refusal": "no"}], "messages[0].refusal"),
            ([MESSAGE | {"function_call": {}}], "messages[0].function_call"),
            ([MESSAGE | {"tool_call_id": "x"}], "messages[0].tool_call_id"),
        ],
        "max_completion_tokens": [(0, "max_completion_tokens")],
        "logprobs": [(1, "logprobs")],
        "top_logprobs": [(21, "top_logprobs"), (2, "top_logprobs"), (-1, "top_logprobs")],
        "chat_template_kwargs": [
            ({"chat_template": "{{ 1 }}"}, "chat_template_kwargs.chat_template"),
            ({"tokenize": True}, "chat_template_kwargs.tokenize"),
        ],
        "echo": [(True, "echo")],
        "best_of": [(2, "best_of")],
    },
}


def taken():
    for path, table in TAKEN.items():
        for field, values in table.items():
            for value in values:
                yield pytest.param(path, field, value, id=f"{path[4:8]}-{field}-{value}"[:60])


def refused():
    for path, table in REFUSED.items():
        for field, pairs in table.items():
            for value, named in pairs:
                label = f"{path[4:8]}-{field}-{value}"[:60]
                yield pytest.param(path, field, value, named, id=label)


@pytest.mark.parametrize(("path", "field", "value"), list(taken()))
def test_taken(client, path, field, value):
    response = client.post(path, json=MINIMAL[path] | {field: value})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "field", "value", "named"), list(refused()))
def test_refused_by_name(client, path, field, value, named):
    response = client.post(path, json=MINIMAL[path] | {field: value})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(named)
    assert field.split(".")[0] in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("path", "params"),
    [
        (COMPLETIONS, completion_params.CompletionCreateParamsBase),
        (CHAT, chat_params.CompletionCreateParamsBase),
    ],
)
def test_every_field_of_the_clients_library_is_decided(path, params):
    assert params.__annotations__.keys() <= TAKEN[path].keys() | REFUSED[path].keys()


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, CompletionBody), (CHAT, ChatBody)])
def test_every_declared_field_is_in_the_tables(path, body):
    tables = TAKEN[path].keys() | REFUSED[path].keys()
    assert body.model_fields.keys() <= tables
    assert tables - body.model_fields.keys() <= {"a field nobody knows"}


@pytest.mark.parametrize(
    ("field", "most", "value"),
    [
        ("logit_bias", 1024, lambda count: {str(key): 1 for key in range(count)}),
        ("stop_token_ids", 256, lambda count: list(range(count))),
        ("stop", 1024, lambda count: ["a", "x" * count]),
    ],
)
@pytest.mark.parametrize(
    ("body", "rest"),
    [(CompletionBody, {"prompt": "x"}), (ChatBody, {"messages": [MESSAGE]})],
)
def test_what_every_round_must_look_at_is_bounded(body, rest, field, most, value):
    assert body.model_validate(rest | {field: value(most)})
    with pytest.raises(ValidationError) as refused:
        body.model_validate(rest | {field: value(most + 1)})
    assert refused.value.errors()[0]["loc"][0] == field


def test_each_endpoint_decides_every_field_of_the_other():
    assert CompletionBody.model_fields.keys() == ChatBody.model_fields.keys()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_null_means_default_for_every_optional_field(client, path):
    body = TAKEN[path].keys() | REFUSED[path].keys()
    response = client.post(path, json=dict.fromkeys(body) | MINIMAL[path])
    assert response.status_code == 200, response.text


LONELY = "stream_options.continuous_usage_stats"


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (COMPLETIONS, {"echo": True, "logprobs": 1}, "echo"),
        (COMPLETIONS, {"n": 2, "best_of": 3}, "best_of"),
        (COMPLETIONS, {"n": 128}, "n"),
        (COMPLETIONS, {"n": 2, "prompt": ["x"] * 41}, "n"),
        (COMPLETIONS, {"prompt": ["x"] * 81}, "prompt"),
        (COMPLETIONS, {"prompt": [[5]] * 81}, "prompt"),
        (CHAT, {"n": 128}, "n"),
        (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, "continue"),
        (COMPLETIONS, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream"),
        (CHAT, {"stream": True, "stream_options": {"continuous_usage_stats": True}}, LONELY),
        (COMPLETIONS, {"min_tokens": 200, "max_tokens": 300}, "min_tokens"),
    ],
)
def test_refused_together(client, path, fields, named):
    response = client.post(path, json=MINIMAL[path] | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(named)
