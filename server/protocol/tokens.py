"""The bodies of POST /tokenize and POST /detokenize."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from server.protocol.chat import Messages
from server.protocol.fields import Body, TokenId, Unsupported, disagreement

__all__ = ["DetokenizeBody", "TokenizeBody"]


_OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeBody(Body):
    """A prompt or messages. Special tokens are added to a prompt unless it says otherwise."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    tools: Unsupported = None
    chat_template: Unsupported = None
    media_io_kwargs: Unsupported = None
    mm_processor_kwargs: Unsupported = None

    @model_validator(mode="after")
    def _one_input(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise disagreement("prompt", "exactly one of prompt and messages is needed")
        if self.prompt is not None:
            for field in _OF_MESSAGES:
                if getattr(self, field) is not None:
                    raise disagreement(field, "only allowed with messages")
        if self.add_generation_prompt and self.continue_final_message:
            raise disagreement(
                "continue_final_message", "cannot be true together with add_generation_prompt"
            )
        return self


class DetokenizeBody(Body):
    """Token ids to turn into text; special tokens are kept."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]
