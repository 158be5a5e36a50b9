"""POST /v1/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.api import Api, answer, reply_options, served
from server.backend import Serving
from server.errors import refusal
from server.intake import read_body
from server.protocol.completions import CompletionBody, Prompt
from server.replies.piece import ReplyOptions
from server.replies.writers import CompletionWriter
from server.translate import Asked, truncated

__all__ = ["completion_routes"]

DEFAULT_MAX_TOKENS = 16


def completion_routes(api: Api) -> APIRouter:
    """The route over `api`."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        """Continue each prompt."""
        body = await read_body(request, CompletionBody, api.options.body_limit)
        serving, _ = served(api, body.model)
        asked = Asked(
            body=body,
            prompts=tuple([await _tokens(one, body, serving) for one in body.prompt]),
            max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
            token_field="max_tokens",  # noqa: S106 - a field's name
            logprobs=body.logprobs,
        )
        options = reply_options(asked, echo=_echo(asked, body, serving), top=body.logprobs)
        return await answer(api, request, asked, options, _writer)

    return router


async def _tokens(prompt: Prompt, body: CompletionBody, serving: Serving) -> tuple[int, ...]:
    if isinstance(prompt, str):
        special = body.add_special_tokens is not False
        ids = await serving.tokenizer.encode(prompt, add_special_tokens=special)
    else:
        ids = prompt
        most = max(ids)
        if most >= serving.vocabulary:
            limit = serving.vocabulary - 1
            raise refusal("prompt", f"prompt: {str(most)[:40]} is no token id of 0..{limit}")
    return truncated(ids, body, serving)


def _echo(asked: Asked, body: CompletionBody, serving: Serving) -> list[str] | None:
    """The prompts as text: as they were sent, unless they were ids or were shortened."""
    if not body.echo:
        return None
    kept = body.truncate_prompt_tokens is None
    return [
        one if isinstance(one, str) and kept else serving.tokenizer.decode(ids)
        for one, ids in zip(body.prompt, asked.prompts, strict=True)
    ]


def _writer(options: ReplyOptions, serving: Serving) -> CompletionWriter:
    return CompletionWriter(options, serving.tokenizer.pieces)
