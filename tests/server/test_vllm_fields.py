"""Every field of vLLM's own protocol is honoured or refused by name: none is lost unseen."""

import importlib

import pytest

from server.protocol.chat import ChatBody
from server.protocol.completions import CompletionBody
from server.protocol.generation import StreamOptions
from server.protocol.tokens import DetokenizeBody, TokenizeBody
from tests.oracles.forwards import need_vllm, unwarned


@pytest.mark.parametrize(
    ("module", "theirs", "ours"),
    [
        ("openai.chat_completion", "ChatCompletionRequest", ChatBody),
        ("openai.completion", "CompletionRequest", CompletionBody),
        ("generate.base", "StreamOptions", StreamOptions),
        ("serve.tokenize", "TokenizeCompletionRequest", TokenizeBody),
        ("serve.tokenize", "TokenizeChatRequest", TokenizeBody),
        ("serve.tokenize", "DetokenizeRequest", DetokenizeBody),
    ],
)
def test_every_field_of_vllms_protocol_is_decided(module, theirs, ours):
    need_vllm()
    with unwarned():
        protocol = importlib.import_module(f"vllm.entrypoints.{module}.protocol")
    assert getattr(protocol, theirs).model_fields.keys() - ours.model_fields.keys() == set()
