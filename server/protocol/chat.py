"""The body of POST /v1/chat/completions."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.fields import Body, Count, Unsupported, disagreement, only
from server.protocol.generation import GenerationBody

__all__ = ["ChatBody", "Message", "Messages"]


def _content(value: object) -> object:
    """A string, or text parts joined as one string."""
    if not isinstance(value, list):
        return value
    return "".join(_part(part) for part in value)


def _part(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind != "text":
        raise PydanticCustomError(
            "unsupported", "only parts of type text are supported by this server"
        )
    text = part["text"] if isinstance(part, dict) and "text" in part else None
    if not isinstance(text, str):
        raise PydanticCustomError("content", "a text part needs a string in its field text")
    return text


class Message(Body):
    """One turn. `content` arrives as a string; `developer` is another word for `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str, BeforeValidator(_content, json_schema_input_type=str | list[dict[str, str]])
    ]
    name: str | None = None
    tool_calls: Unsupported = None
    tool_call_id: Unsupported = None
    function_call: Unsupported = None
    audio: Unsupported = None
    refusal: Unsupported = None

    def for_template(self) -> dict[str, str]:
        """The turn as chat templates expect it."""
        role = "system" if self.role == "developer" else self.role
        turn = {"role": role, "content": self.content}
        return turn if self.name is None else turn | {"name": self.name}


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]


class ChatBody(GenerationBody):
    """Chat completion."""

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    prompt: Unsupported = None
    echo: Annotated[object, only(False)] = None
    best_of: Annotated[object, only(1)] = None

    @model_validator(mode="after")
    def _chat_fields_agree(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise disagreement("top_logprobs", "only allowed when logprobs is true")
        if self.add_generation_prompt and self.continue_final_message:
            raise disagreement(
                "continue_final_message", "cannot be true together with add_generation_prompt"
            )
        return self
