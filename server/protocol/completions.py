"""The body of POST /v1/completions."""

from typing import Annotated, Self

from pydantic import Field, PlainValidator, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from server.protocol.fields import Count, Unsupported, disagreement
from server.protocol.generation import GenerationBody

__all__ = ["CompletionBody", "Prompt"]

MAX_PROMPTS = 2048
Prompt = str | tuple[int, ...]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS}
_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        _TEXTS,
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}


def _prompts(value: object) -> tuple[Prompt, ...]:
    """Any of the four forms of a prompt as a tuple of texts or of token ids."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise PydanticCustomError(
            "prompt", "must be a string, a list of strings, a list of ids or a list of such lists"
        )
    if _is_id(value[0]):
        return (_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise PydanticCustomError("prompt", "at most {most} prompts", {"most": MAX_PROMPTS})
    return tuple(one if isinstance(one, str) else _ids(one) for one in value)


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(map(_is_id, value)):
        raise PydanticCustomError("prompt", "each prompt must be a string or a list of token ids")
    return tuple(value)


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


class CompletionBody(GenerationBody):
    """Text completion. `prompt` arrives as a tuple, whatever its form was."""

    prompt: Annotated[tuple[Prompt, ...], PlainValidator(_prompts), WithJsonSchema(_SCHEMA)]
    max_tokens: Count | None = None
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    messages: Unsupported = None
    max_completion_tokens: Unsupported = None
    top_logprobs: Unsupported = None
    add_generation_prompt: Unsupported = None
    continue_final_message: Unsupported = None
    chat_template_kwargs: Unsupported = None

    @model_validator(mode="after")
    def _completion_fields_agree(self) -> Self:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise disagreement("best_of", "only supported when it equals n")
        if self.echo and self.logprobs is not None:
            raise disagreement("echo", "not supported by this server together with logprobs")
        return self
