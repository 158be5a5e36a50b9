"""The body of /v1/chat/completions and what the template is given."""

import asyncio
import inspect

import jinja2
import pytest
from transformers.utils import chat_template_utils

from server.errors import ApiError
from server.tokenizer import ChatInput, TokenizerService
from tests.server.world import new_tokenizer

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
RENDERED = "<s><|user|>\nhello</s>"


def post(client, **fields):
    response = client.post(PATH, json={"model": "pair"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_text(world, body):
    return world.service.decode(body["prompt_token_ids"])


def test_the_whole_body(world, client):
    world.runner.scripts[world.ids(RENDERED + "\n<|assistant|>\n")] = world.ids("Good day.")
    body = post(client, messages=HELLO, max_completion_tokens=50)
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Good day.", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, RENDERED + "\n<|assistant|>\n"),
        ({"add_generation_prompt": False}, RENDERED),
        ({"add_special_tokens": True}, "<s>" + RENDERED + "\n<|assistant|>\n"),
    ],
)
def test_the_template_writes_the_prompt(world, client, fields, text):
    body = post(client, messages=HELLO, return_token_ids=True, max_tokens=1, **fields)
    assert prompt_text(world, body) == text


def test_the_last_message_can_be_continued(world, client):
    messages = [*HELLO, {"role": "assistant", "content": "Good"}]
    body = post(
        client,
        messages=messages,
        continue_final_message=True,
        return_token_ids=True,
        max_tokens=1,
    )
    assert prompt_text(world, body) == RENDERED + "\n<|assistant|>\nGood"


def test_parts_are_joined_and_developers_are_the_system(world, client):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "developer", "content": parts}, *HELLO]
    body = post(client, messages=messages, return_token_ids=True, max_tokens=1)
    assert prompt_text(world, body).startswith("<s><|system|>\nab</s>\n<|user|>\nhello")


def test_the_rest_of_the_context_unless_told_otherwise(client):
    body = post(client, messages=HELLO, ignore_eos=True)
    assert body["usage"]["total_tokens"] == 96
    assert body["choices"][0]["finish_reason"] == "length"


def test_the_newer_limit_goes_first(client):
    body = post(client, messages=HELLO, max_tokens=9, max_completion_tokens=3)
    assert body["usage"]["completion_tokens"] == 3


def test_what_the_template_refuses_names_the_messages(world, client):
    template = world.tokenizer.chat_template
    world.tokenizer.chat_template = "{{ raise_exception('no such role here') }}"
    try:
        response = client.post(PATH, json={"messages": HELLO})
        world.tokenizer.chat_template = "{{ nothing.at.all }}"
        broken = client.post(PATH, json={"messages": HELLO})
        world.tokenizer.chat_template = None
        missing = client.post(PATH, json={"messages": HELLO})
    finally:
        world.tokenizer.chat_template = template
    for answer, words in ((response, "no such role"), (missing, "no chat template")):
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
        assert words in answer.json()["error"]["message"]
    assert broken.status_code == 400


@pytest.mark.parametrize("template", ["{{ 1 + colour }}", "{{ {}['x'] + 1 }}", "{{ 1 / 0 }}"])
def test_what_breaks_in_the_template_is_told_without_internals(world, client, template):
    kept = world.tokenizer.chat_template
    world.tokenizer.chat_template = template
    try:
        response = client.post(
            PATH, json={"messages": HELLO, "chat_template_kwargs": {"colour": "blue"}}
        )
    finally:
        world.tokenizer.chat_template = kept
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert not any(word in message for word in ("operand", "int", "type", "undefined", "zero"))


def renderer_names(tokenizer):
    """Every name that the library's own renderer takes or gives to the template."""
    functions = (
        *(tokenizer.apply_chat_template, chat_template_utils.render_jinja_template),
        *(jinja2.Template.render, jinja2.Environment.make_globals),
    )
    taken = {name for one in functions for name in inspect.signature(one).parameters}
    compiled = chat_template_utils._compile_jinja_template("x")
    given = set(compiled.environment.globals) | set(tokenizer.SPECIAL_TOKENS_ATTRIBUTES)
    return taken - {"kwargs", "args", "d"} | given | set(tokenizer.special_tokens_map)


def test_names_of_the_renderer_itself_are_refused(world, client):
    names = renderer_names(world.tokenizer)
    assert {"conversations", "self", "bos_token", "eos_token", "raise_exception"} <= names
    for name in names:
        body = {"messages": HELLO, "chat_template_kwargs": {name: "x"}}
        for path in (PATH, "/tokenize"):
            response = client.post(path, json=body)
            assert response.status_code == 400, name
            assert response.json()["error"]["param"] == f"chat_template_kwargs.{name}"


def test_special_tokens_that_only_this_model_has_are_refused():
    tokenizer = new_tokenizer()
    tokenizer._set_model_specific_special_tokens({"picture_token": tokenizer.eos_token})
    service = TokenizerService(tokenizer, frozenset())
    chat = ChatInput(messages=HELLO, extra={"picture_token": "x"})
    with pytest.raises(ApiError) as refused:
        asyncio.run(service.chat(chat))
    assert refused.value.problem.param == "chat_template_kwargs.picture_token"


def test_variables_reach_the_template(world, client):
    template = world.tokenizer.chat_template
    world.tokenizer.chat_template = "{{ colour }}"
    try:
        body = post(
            client,
            messages=HELLO,
            chat_template_kwargs={"colour": "blue"},
            return_token_ids=True,
            max_tokens=1,
        )
    finally:
        world.tokenizer.chat_template = template
    assert prompt_text(world, body) == "blue"


def test_several_choices(client):
    body = post(client, messages=HELLO, n=3, max_tokens=4)
    assert [c["index"] for c in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 12


def test_a_long_conversation_is_rendered_off_the_loop(client):
    response = client.post(PATH, json={"messages": [{"role": "user", "content": "word " * 3000}]})
    assert response.json()["error"]["code"] == "context_length_exceeded"
